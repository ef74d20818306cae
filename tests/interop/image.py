"""Makes the guest's kernel and initramfs out of Debian packages: no root, no loop mount, no chroot.

Packages are resolved and fetched (checked, as always) by apt and unpacked without their maintainer
scripts; the whole system is one uncompressed initramfs, so that guests share nothing they can
write. The result stays in a cache, named after the recipe: later runs need neither apt nor network.
"""

import fcntl
import functools
import hashlib
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# The cloud kernel (linux-image-cloud-amd64) is smaller, but built without CONFIG_RDMA_RXE.
KERNEL_PACKAGE = "linux-image-amd64"
PACKAGES = ["bash", "coreutils", "findutils", "grep", "ibverbs-providers", "ibverbs-utils",
            "iproute2", "iputils-ping", "kmod", "mawk", "mount", "perftest", "procps",
            "python3-pyverbs", "qperf", "rdma-core", "rdmacm-utils", "sed", "tar", "tcpdump",
            "util-linux"]
# rdma_rxe asks the crypto API for "crc32" by name, which no dependency shows.
MODULES = ["crc32_generic", "crc32_pclmul", "virtio_pci", "virtio_net", "virtio_console",
           "virtio-rng", "rdma_rxe", "ib_uverbs", "ib_umad", "rdma_ucm", "sch_netem", "af_packet"]
# What a guest never reads. The pyverbs suite is shipped as documentation, and stays.
PRUNED = ["usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian",
          "usr/share/perl*", "usr/share/bash-completion", "usr/share/zoneinfo", "usr/share/i18n",
          "usr/bin/perl*", "usr/lib/*/perl*", "usr/lib/*/gconv", "usr/lib/udev", "usr/lib/systemd",
          "usr/lib/dpkg", "usr/bin/dpkg*", "usr/lib/python3.*/test", "usr/lib/python3.*/idlelib",
          "usr/lib/python3.*/lib2to3", "usr/lib/python3.*/ensurepip", "usr/lib/python3.*/distutils",
          "usr/lib/python3.*/pydoc_data", "usr/lib/valgrind", "var/lib/dpkg", "var/cache"]
AGENT = HERE / "guest_agent.py"
INIT = HERE / "guest_init.sh"
APT_LIMIT_S = 600


class Unavailable(Exception):
    """The guest can't be had on this machine; the text says why and what would help."""


class Image:
    """A kernel and an initramfs to boot."""

    def __init__(self, directory):
        self.directory = directory
        self.kernel = directory / "vmlinuz"
        self.initramfs = directory / "initramfs"
        self.kernel_release = (directory / "release").read_text(encoding="ascii").strip()


def cache_root():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "verbena" / "interop"


@functools.cache
def recipe_key():
    """Once per process, so that an edit during a run makes no second image."""
    digest = hashlib.sha256()
    for path in (pathlib.Path(__file__), AGENT, INIT):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def need_tools(*names):
    missing = [name for name in names
               if not shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")]
    if missing:
        raise Unavailable(f"{', '.join(missing)} not found; install Verbena's package group "
                          "'interop' (tools/lib/packages.sh)")


def ensure(rebuild=False, say=lambda text: None):
    """The image, made if it isn't in the cache. Raises Unavailable."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    final = root / recipe_key()
    # Two runs that start together make one image.
    with open(root / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if rebuild and final.exists():
            shutil.rmtree(final)
        if not final.exists():
            need_tools("apt-get", "dpkg-deb", "depmod", "tar")
            say("making the guest's image (once; about a minute)")
            work = pathlib.Path(tempfile.mkdtemp(prefix="make-", dir=root))
            try:
                _make(work, root / "archives", say)
                os.rename(work / "image", final)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            _drop_others(root, final)
    return Image(final)


def _drop_others(root, keep):
    """Images of former recipes; one in use stays readable through the files QEMU holds open."""
    for path in root.iterdir():
        if path.is_dir() and path != keep and re.fullmatch(r"[0-9a-f]{16}", path.name):
            shutil.rmtree(path, ignore_errors=True)


def _run(argv, **options):
    try:
        done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                              timeout=APT_LIMIT_S, **options)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{argv[0]} did not end within {APT_LIMIT_S} s") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise Unavailable(f"{' '.join(map(str, argv[:3]))} failed: {' | '.join(text)}\n"
                          "(no network, or package lists missing: try 'apt-get update')")
    return done.stdout.decode(errors="replace")


def _fetch(archives):
    """Downloads what is missing. Returns (kernel's .deb, the other .debs)."""
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    # As if nothing were installed: the guest's system has to be complete in itself.
    options = ["-y", "-q", "-o", "Dir::State::status=/dev/null", "-o", f"Dir::Cache={archives}",
               "-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1",
               "-o", "APT::Sandbox::User=root", "-o", "APT::Install-Recommends=0",
               "-o", "APT::Keep-Downloaded-Packages=1", "-o", "DPkg::Post-Invoke=",
               "-o", "APT::Update::Post-Invoke="]
    plan = _run(["apt-get", *options, "--simulate", "install", *PACKAGES])
    _run(["apt-get", *options, "--download-only", "install", *PACKAGES])
    debs = []
    for name, version in re.findall(r"^Inst (\S+) \((\S+)", plan, re.M):
        debs += archives.glob(f"{name}_{version.replace(':', '%3a')}_*.deb")
    if not debs:
        raise Unavailable("apt named no packages to install")
    depends = _run(["apt-cache", "depends", KERNEL_PACKAGE])
    match = re.search(r"Depends: (linux-image-\d\S*)", depends)
    if not match:
        raise Unavailable(f"apt knows no {KERNEL_PACKAGE}: try 'apt-get update'")
    # 'download' and not 'install': its dependencies make an initramfs, which we do ourselves.
    _run(["apt-get", *options, "download", match.group(1)], cwd=archives)
    kernel = max(archives.glob(match.group(1) + "_*.deb"), key=os.path.getmtime)
    return kernel, debs


def _unpack(deb, into, *members):
    """A package's files, without its scripts. Links of the merged /usr are kept, and followed."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as source:
        done = subprocess.run(["tar", "-x", "-C", into, "--keep-directory-symlink",
                               "--no-same-owner", "--wildcards", *members],
                              stdin=source.stdout, stderr=subprocess.PIPE, check=False)
    # With members given, tar may leave early; then dpkg-deb ends by SIGPIPE.
    if done.returncode or source.returncode > 0 and not members:
        raise Unavailable(f"{deb.name} could not be unpacked: {done.stderr.decode()[-200:]}")


def _prune(root):
    suite = root / "usr/share/doc/rdma-core/tests"
    kept = root / "tests"
    if suite.is_dir():
        suite.rename(kept)
    for pattern in ["usr/share/doc", *PRUNED]:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    if kept.is_dir():
        (root / "usr/share/doc/rdma-core").mkdir(parents=True)
        kept.rename(suite)


def _add_modules(deb, root, work):
    """The modules named above and what they depend on. Returns the kernel's release."""
    tree = work / "kernel"
    tree.mkdir()
    _unpack(deb, tree, "./boot/vmlinuz-*", "./lib/modules/*")
    release = next((tree / "lib/modules").iterdir()).name
    environment = dict(os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    _run(["depmod", "-b", tree, release], env=environment)
    depends = {}
    base = tree / "lib/modules" / release
    for line in (base / "modules.dep").read_text(encoding="ascii").splitlines():
        path, needed = line.split(":")
        depends[path] = needed.split()
    built_in = {pathlib.Path(line).stem.replace("-", "_") for line in
                (base / "modules.builtin").read_text(encoding="ascii").splitlines()}
    by_name = {re.sub(r"-", "_", pathlib.Path(path).stem): path for path in depends}
    target = root / "usr/lib/modules" / release
    for name in MODULES:
        path = by_name.get(name.replace("-", "_"))
        if not path and name.replace("-", "_") in built_in:
            continue
        if not path:
            raise Unavailable(f"the kernel {release} has no module {name}")
        for wanted in [path, *depends[path]]:
            (target / wanted).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(base / wanted, target / wanted)
    for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
        if (base / name).exists():
            shutil.copy(base / name, target / name)
    _run(["depmod", "-b", root, release], env=environment)
    shutil.copy(tree / "boot" / f"vmlinuz-{release}", work / "image" / "vmlinuz")
    return release


def _configure(root):
    """What maintainer scripts would have left."""
    files = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n",
        "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
        "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "etc/hostname": "guest\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
    for name in ("proc", "sys", "dev", "run", "tmp", "root"):
        (root / name).mkdir(exist_ok=True)
    if not (root / "usr/bin/sh").exists():
        (root / "usr/bin/sh").symlink_to("bash")
    shutil.copy(AGENT, root / "agent.py")
    shutil.copy(INIT, root / "init")
    os.chmod(root / "init", 0o755)
    # Python's start is what takes longest under TCG: compiled modules halve it.
    library = next((root / "usr/lib").glob("python3.*"), None)
    if library:
        interpreter = shutil.which(library.name, path="/usr/bin") or ""
        if interpreter:
            _run([interpreter, "-m", "compileall", "-q", "-x", "site-packages/lib2to3",
                  "--invalidation-mode", "unchecked-hash", "-s", root, library,
                  root / "usr/lib/python3/dist-packages"])


def _cpio_header(number, mode, links, size, name):
    fields = [number, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name + b"\0"
    return head + b"\0" * (-len(head) % 4)


def _write_initramfs(root, target):
    """The 'newc' format of cpio, as the kernel unpacks it; everything belongs to root."""
    with open(target, "wb") as out:
        for number, path in enumerate(sorted(root.rglob("*")), 1):
            info = path.lstat()
            name = str(path.relative_to(root)).encode()
            if stat.S_ISLNK(info.st_mode):
                body = os.readlink(path).encode()
            elif stat.S_ISREG(info.st_mode):
                body = path.read_bytes()
            elif stat.S_ISDIR(info.st_mode):
                body = b""
            else:
                continue
            links = 2 if stat.S_ISDIR(info.st_mode) else 1
            out.write(_cpio_header(number, info.st_mode, links, len(body), name))
            out.write(body + b"\0" * (-len(body) % 4))
        out.write(_cpio_header(0, 0, 1, 0, b"TRAILER!!!"))


def _make(work, archives, say):
    root, image = work / "root", work / "image"
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to("usr/" + name)
    image.mkdir()
    kernel, debs = _fetch(archives)
    say(f"unpacking {len(debs)} packages and {kernel.name}")
    for deb in debs:
        _unpack(deb, root)
    release = _add_modules(kernel, root, work)
    _prune(root)
    _configure(root)
    _write_initramfs(root, image / "initramfs")
    (image / "release").write_text(release + "\n", encoding="ascii")
