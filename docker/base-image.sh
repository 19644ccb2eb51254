#!/bin/sh
# Makes a local base image for machines that reach no registry: Debian bookworm (Python 3.11) with a CPU build of torch.
#
#   docker/base-image.sh [TAG]                            TAG: rankzero-base:cpu
#   docker build --network host -f docker/Dockerfile --build-arg BASE_IMAGE=rankzero-base:cpu -t rankzero:cpu .
#
# Needs root, debootstrap, a docker daemon, and a pip that reaches an index: torch is fetched by this machine's pip with
# this machine's settings, and what it has fetched is copied in, so that nothing of those settings is in the image.
#
#   PYTHON        whose pip fetches torch                (python3)
#   TORCH_INDEX   index of the CPU builds of torch       (the one pip is set to)
#   DEBIAN        mirror of Debian                       (http://deb.debian.org/debian)
#   CA_BUNDLE     certificates that the image trusts     (/etc/ssl/certs/ca-certificates.crt)
set -eu

tag=${1:-rankzero-base:cpu}
constraints=$(dirname "$0")/../constraints.txt
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$root" \
    "${DEBIAN:-http://deb.debian.org/debian}"
cp "${CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/certs/ca-certificates.crt"

# --target with a version says for whom wheels are chosen, whatever Python this machine has.
packages=$root/usr/local/lib/python3.11/dist-packages
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-compile -c "$constraints" \
    --python-version 3.11 --only-binary=:all: --target "$packages" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch

# Package lists, manuals, C++ headers and torch's own tests serve nobody at run time.
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/debootstrap \
    "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/* \
    "$packages/bin" "$packages/torch/include" "$packages/torch/test"
find "$packages/torch/bin" -type f ! -name torch_shm_manager -delete

tar --numeric-owner -C "$root" -c . | docker import \
    --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'CMD ["python3"]' --message 'Debian bookworm with a CPU build of torch' - "$tag"
