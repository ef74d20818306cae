"""The programs every RDMA tutorial begins with."""

from harness import Spec, check


def devices_are_listed(case):
    instance = case.instance(nics=3)
    out = case.run(["ibv_devices"], 10, env=instance.env()).out
    for name in ("verbena0", "verbena1", "verbena2"):
        check(name in out, f"ibv_devices does not list {name}:\n{out}")


def no_daemon_means_no_devices(case):
    env = case.instance().env(VERBENA_INSTANCE=str(case.dir / "nowhere"))
    out = case.run(["ibv_devices"], 10, env=env).out
    check("verbena" not in out, f"ibv_devices lists a device of no instance:\n{out}")


def devinfo_is_complete(case):
    instance = case.instance()
    process = case.run(["ibv_devinfo", "-v"], 10, env=instance.env())
    for text in ("hca_id:\tverbena0", "hca_id:\tverbena1", "PORT_ACTIVE", "Ethernet",
                 "max_qp:", "::ffff:127.0.0.1, RoCE v2", "::ffff:127.0.0.2, RoCE v2",
                 "GID[  0]", "fe80::"):
        check(text in process.out, f"ibv_devinfo -v lacks '{text}':\n{process.out}")
    check("atomic_cap:\t\t\tATOMIC_HCA" in process.out, "atomics are not announced as ATOMIC_HCA")
    check(not process.err.strip(), f"ibv_devinfo wrote to stderr: {process.err}")


def asyncwatch_opens(case):
    instance = case.instance()
    watch = case.spawn(["stdbuf", "-oL", "ibv_asyncwatch", "-d", "verbena0"], env=instance.env())
    watch.wait_for_output("async event FD", 10)


def cases(thorough):
    return [
        Spec("ibv_devices lists every NIC", devices_are_listed),
        Spec("ibv_devices without an instance lists none", no_daemon_means_no_devices),
        Spec("ibv_devinfo -v shows port, GIDs and limits", devinfo_is_complete),
        Spec("ibv_asyncwatch opens the device", asyncwatch_opens),
    ]
