"""What /dev/infiniband/rdma_cm is to a program that knows the kernel's commands and no librdmacm."""

import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import subprocess
import threading

PATH = "/dev/infiniband/rdma_cm"
CREATE_ID, DESTROY_ID, LISTEN, GET_EVENT, MIGRATE_ID = 0, 1, 7, 12, 18
RDMA_PS_TCP, IBV_QPT_RC = 0x0106, 2


def command(fd, number, body, answer_bytes=0):
    """The answer's bytes. The command's first field is where that goes, if there is one."""
    answer = ctypes.create_string_buffer(max(answer_bytes, 1))
    if answer_bytes:
        place = struct.pack("Q", ctypes.addressof(answer))
        body = body[:8] + place + body[8:] if number == CREATE_ID else place + body
    text = struct.pack("IHH", number, len(body), answer_bytes) + body
    assert os.write(fd, text) == len(text)
    return answer.raw[:answer_bytes]


def create_id(fd):
    body = struct.pack("QHB5x", 0x1234, RDMA_PS_TCP, IBV_QPT_RC)
    return struct.unpack("I", command(fd, CREATE_ID, body, 4))[0]


def listen(fd, number):
    command(fd, LISTEN, struct.pack("II", number, 1))


def fails(expected, function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        assert error.errno == expected, f"{error}, not {errno.errorcode[expected]}"
        return
    raise AssertionError(f"no {errno.errorcode[expected]}")


def is_device(fd):
    return stat.S_ISCHR(os.fstat(fd).st_mode)


def opening():
    fd = os.open(PATH, os.O_RDWR)
    assert is_device(fd) and os.fstat(fd).st_rdev != 0
    assert stat.S_ISCHR(os.stat(fd).st_mode)
    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    os.close(fd)
    fails(errno.EBADF, os.write, fd, b"x")
    with open("/dev/null", "wb", buffering=0) as null:
        assert null.fileno() == fd, "the number was not free again"
        assert null.write(b"not a command") == 13
        assert os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev


def commands():
    fd = os.open(PATH, os.O_RDWR | os.O_CLOEXEC)
    fails(errno.EINVAL, os.write, fd, b"short")
    fails(errno.EINVAL, os.write, fd, struct.pack("IHH", 200, 0, 0))
    fails(errno.EINVAL, os.write, fd, struct.pack("IHH", LISTEN, 8, 0))
    fails(errno.ENOENT, listen, fd, 5)
    number = create_id(fd)
    assert number == 0
    listen(fd, number)
    fails(errno.EINVAL, listen, fd, number)
    os.close(fd)


def waiting():
    fd = os.open(PATH, os.O_RDWR | os.O_NONBLOCK)
    fails(errno.EAGAIN, command, fd, GET_EVENT, b"", 336)
    assert select.select([fd], [], [], 0)[0] == []
    os.close(fd)


def duplicates():
    """A file ends with the last of its fds."""
    fd = os.open(PATH, os.O_RDWR)
    copies = [os.dup(fd), os.dup2(fd, 200), fcntl.fcntl(fd, fcntl.F_DUPFD, 300),
              fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300)]
    number = create_id(fd)
    os.close(fd)
    for copy in copies[:-1]:
        assert is_device(copy)
        os.close(copy)
    listen(copies[-1], number)
    os.close(copies[-1])


def stale_numbers():
    """Closed by a system call of its own, the number becomes another file's."""
    fd = os.open(PATH, os.O_RDWR)
    close_range = 436
    assert ctypes.CDLL(None).syscall(close_range, fd, fd, 0) == 0
    reader, writer = os.pipe()
    assert fd in (reader, writer) and not is_device(fd)
    assert os.write(writer, b"plain") == 5 and os.read(reader, 5) == b"plain"
    os.close(reader)
    os.close(writer)


def children():
    """Who has a copy of the fd may close it; commands are the opener's."""
    fd = os.open(PATH, os.O_RDWR)
    os.set_inheritable(fd, True)
    number = create_id(fd)
    subprocess.run(["true"], check=True, close_fds=True)  # vfork, and all is closed there
    child = os.fork()
    if child == 0:
        try:
            fails(errno.EIO, listen, fd, number)
            os.close(fd)
            own = os.open(PATH, os.O_RDWR)
            listen(own, create_id(own))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    listen(fd, number)
    os.close(fd)


def migration():
    old, new = os.open(PATH, os.O_RDWR), os.open(PATH, os.O_RDWR)
    number = create_id(old)
    fails(errno.EINVAL, listen, new, number)
    command(new, MIGRATE_ID, struct.pack("II", number, old), 4)
    fails(errno.EINVAL, listen, old, number)
    os.close(old)
    listen(new, number)
    os.close(new)


def threads():
    """Each has files of its own, at once."""
    def work():
        for _ in range(50):
            fd = os.open(PATH, os.O_RDWR)
            number = create_id(fd)
            listen(fd, number)
            command(fd, DESTROY_ID, struct.pack("II", number, 0), 4)
            os.close(fd)

    failed = []
    threading.excepthook = failed.append
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed, failed


for case in (opening, commands, waiting, duplicates, stale_numbers, children, migration, threads):
    case()
print("all as the kernel's")
