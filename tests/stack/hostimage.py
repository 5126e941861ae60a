# SPDX-License-Identifier: Apache-2.0
"""Build the compute hosts' image: a layer on the lab's, with Nova in /opt/nova."""

import pathlib
import shutil

from machine import image

from tests.stack.layout import VENV

REQUIREMENTS = pathlib.Path(__file__).parent / 'requirements.txt'
#: What nova-compute calls, and what the operator's guide takes for granted.
PACKAGES = 'python3-venv qemu-utils jq'
#: pip in the machine, which cannot reach a package index, finds the package's requirements here.
WHEELS = 'opt/wheels'
KEPT_WHEELS = """oslo.config oslo_config oslo.i18n oslo_i18n pip setuptools wheel pbr netaddr
stevedore rfc3986 pyyaml requests urllib3 idna certifi charset_normalizer typing_extensions
debtcollector wrapt rich markdown-it-py markdown_it_py mdurl pygments""".split()
# Runs in a mount namespace of its own, so nothing stays mounted if it fails. In a plain chroot, /
# is not a mount point and cannot be made private; mounts are then seen outside, and undone.
SCRIPT = f"""set -eu
work=$1 requirements=$2 pip=$3
mount --make-rprivate / || trap 'umount --recursive $work/root || :' EXIT
mkdir $work/root $work/wheels
$pip wheel --quiet --no-deps --wheel-dir $work/wheels --requirement $requirements wheel pip
mount -o loop $work/root.img $work/root
mount -t proc proc $work/root/proc
mount -t tmpfs tmpfs $work/root/tmp
mkdir $work/root/tmp/wheels $work/root/{WHEELS}
mount --bind $work/wheels $work/root/tmp/wheels
mount --bind /etc/resolv.conf $work/root/etc/resolv.conf
in_root() {{ PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 chroot $work/root "$@"; }}
in_root apt-get -q update
in_root apt-get -q -o Dpkg::Use-Pty=0 install --yes --no-install-recommends {PACKAGES}
in_root apt-get -q clean
# Debian's binding to libvirt is what its libvirt was built with.
in_root /usr/bin/python3 -m venv --system-site-packages /opt/nova
cp $requirements $work/root/tmp/requirements.txt
in_root env -u PIP_FIND_LINKS /opt/nova/bin/pip install --quiet --no-deps --ignore-installed \\
    --no-index --find-links /tmp/wheels --requirement /tmp/requirements.txt
for name in {' '.join(KEPT_WHEELS)}; do
    find $work/wheels -iname "$name-*.whl" -exec cp -t $work/root/{WHEELS} {{}} +
done
printf '[global]\\nno-index = true\\nfind-links = /{WHEELS}\\n' >$work/root/etc/pip.conf
umount $work/root/etc/resolv.conf $work/root/tmp/wheels $work/root/tmp $work/root/proc
umount $work/root
rm -r $work/root $work/wheels
"""


def _build(work):
    base = image.image()
    for name in ('vmlinuz', 'initrd.img', 'id_ed25519', 'known_hosts'):
        shutil.copy(base / name, work)
    image._run(['cp', '--sparse=always', base / 'root.img', work], work / 'log')
    if not (pathlib.Path('/etc/resolv.conf')).exists():
        raise image.BuildError('no /etc/resolv.conf: apt-get in the image needs the network')
    image._run(
        [
            *'unshare --mount --propagation unchanged sh -c'.split(),
            *(SCRIPT, 'sh', work, REQUIREMENTS, VENV / 'bin/pip'),
        ],
        work / 'log',
        'Nova in the image',
    )


def host_image():
    """Return the directory of the compute hosts' image; build it if it is new."""
    key = image.digest(image.image().name, SCRIPT, REQUIREMENTS)
    return image.cached('stack-image', key, _build, keep=2)
