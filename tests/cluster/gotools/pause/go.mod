module qwenoperator.io/tests/cluster/pause

go 1.26.0

tool qwenoperator.io/tests/cluster/pause
