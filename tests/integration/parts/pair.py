"""A server and a client of the usual kind: the server listens on TCP, the client connects to it."""

from harness import check, free_port, wait_for


def run_pair(case, pair, server, client, port, limit_s):
    """Starts server, waits until it listens, runs client. Returns both, ended with exit code 0."""
    server = pair.server.spawn(case, server, name="server")

    def listens():
        check(server.is_running() or pair.server.is_listening(port),
              f"the server ended with {server.popen.poll()}: {' '.join(server.argv)}\n"
              f"{server.tail()}")
        return pair.server.is_listening(port)

    wait_for(listens, 10, f"port {port} listens")
    client = pair.client.spawn(case, client, name="client")
    try:
        client.expect_exit(limit_s)
    except Exception as failure:
        failure.args = (f"{failure}\n  server ({server.popen.poll()}):\n{server.tail()}",)
        raise
    server.expect_exit(10)
    return server, client


__all__ = ["run_pair", "free_port"]
