#!/usr/bin/env bash
# get_headers.sh [--small]: fetch CUDA's headers, without the toolkit, into build/cuda_headers.
#
# They are taken out of PyPI wheels, pinned to one release. cuBLAS and NCCL come in wheels of 440
# and 300 MB, of which only the headers are kept; --small leaves those two out (7 MB are fetched),
# and programs that use cuBLAS or NCCL then do not build.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
target=$root/build/cuda_headers
die() { echo "get_headers.sh: error: $*" >&2; exit 1; }
wheels="nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85"
case "${1:-}" in
"") wheels="$wheels nvidia-cublas==13.1.0.3 nvidia-nccl-cu13==2.28.9" ;;
--small) ;;
*) die "unknown option $1; usage: get_headers.sh [--small]" ;;
esac
command -v python3 >/dev/null || die "python3 is not installed"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for wheel in $wheels; do
    echo "fetching $wheel"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work" "$wheel" || die "cannot fetch $wheel"
    python3 - "$work" "$target" <<'PYTHON'
import glob, os, sys, zipfile
work, target = sys.argv[1:]
for path in glob.glob(work + '/*.whl'):
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():                 # nvidia/cu13/include/cuda_runtime.h, ...
            if '/include/' in name and not name.endswith('/'):
                out = os.path.join(target, 'include', name.split('/include/', 1)[1])
                os.makedirs(os.path.dirname(out), exist_ok=True)
                with open(out, 'wb') as f:
                    f.write(wheel.read(name))
    os.remove(path)                                   # the next wheel needs the space
PYTHON
done
[ -f "$target/include/cuda_bf16.h" ] || die "no cuda_bf16.h in the wheels"
echo "done: $(find "$target/include" -type f | wc -l) headers in $target/include"
