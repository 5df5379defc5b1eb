"""The aggregated API `external.metrics.k8s.io/v1beta1`, from which HorizontalPodAutoscalers read.

`certificates` and `front_proxy` are who is who, `answers` what is said, `server` the listener,
`registration` keeps all of it registered with the API server.
"""
