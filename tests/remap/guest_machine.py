"""The smallest guest: a kernel whose only process is churn, linked statically."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interop"))

import image  # noqa: E402
from harness import NotHere  # noqa: E402

OPERATIONS = 1500
DIRECTORY, FILE, CHARACTER_DEVICE = 0o040755, 0o100755, 0o020600


def entry(name, mode, data=b"", device=(0, 0)):
    """One of a cpio archive in the form that kernels take."""
    fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0]
    header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4)


def command(case, program, seed):
    """QEMU's, with an archive made in the case's directory."""
    try:
        kernel = image.ensure(say=lambda text: None).kernel
    except image.Unavailable as missing:
        raise NotHere(str(missing)) from missing
    init = case.program("churn_static").read_bytes()
    archive = case.dir / "initramfs"
    archive.write_bytes(entry("dev", DIRECTORY) + entry("dev/console", CHARACTER_DEVICE, device=(5, 1)) +
                        entry("init", FILE, init) + entry("TRAILER!!!", 0))
    return [program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine",
            "q35,accel=tcg", "-cpu", "max", "-m", "256", "-kernel", str(kernel), "-initrd", str(archive),
            # When its process has ended the kernel panics, which ends QEMU.
            "-append", "console=ttyS0 loglevel=1 panic=-1 mitigations=off tsc=reliable no_timer_check "
            f"rdinit=/init -- {seed} {OPERATIONS}", "-serial", "stdio"]
