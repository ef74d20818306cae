"""All dependencies, from Debian's packages; nothing is downloaded."""

def _system_library(name, linkopts, deps = []):
    native.new_local_repository(
        name = name,
        path = "/usr/share/bazel/tools/platforms",
        build_file_content = """
cc_library(
    name = "{name}",
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
    deps = {deps},
)
""".format(name = name, linkopts = linkopts, deps = deps),
    )

_ABSL = [
    "flags_parse",
    "flags_usage",
    "flags_internal",
    "flags_marshalling",
    "flags_reflection",
    "flags_config",
    "flags_program_name",
    "flags_commandlineflag",
    "flags_private_handle_accessor",
    "flags_commandlineflag_internal",
    "raw_hash_set",
    "hashtablez_sampler",
    "hash",
    "city",
    "low_level_hash",
    "statusor",
    "status",
    "cord",
    "cordz_info",
    "cord_internal",
    "cordz_functions",
    "exponential_biased",
    "cordz_handle",
    "synchronization",
    "graphcycles_internal",
    "stacktrace",
    "symbolize",
    "debugging_internal",
    "demangle_internal",
    "malloc_internal",
    "time",
    "civil_time",
    "time_zone",
    "str_format_internal",
    "strings",
    "strings_internal",
    "int128",
    "base",
    "spinlock_wait",
    "throw_delegate",
    "raw_logging_internal",
    "log_severity",
    "bad_optional_access",
    "bad_variant_access",
]

def verbena_dependencies():
    """Repositories that Bazel 4.2's own WORKSPACE suffix asks for, and the system libraries."""
    native.local_repository(name = "rules_cc", path = "tools/bazel/stubs/rules_cc")
    native.local_repository(
        name = "remote_coverage_tools",
        path = "tools/bazel/stubs/remote_coverage_tools",
    )
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")
    native.local_repository(name = "platforms", path = "/usr/share/bazel/tools/platforms")

    prelude = ["@verbena//tools/bazel/gtest:prelude"]
    _system_library("gtest", ["-lgtest", "-lgmock", "-lpthread"], prelude)
    _system_library("gtest_main", ["-lgmock_main", "-lgmock", "-lgtest", "-lpthread"], prelude)
    _system_library("benchmark", ["-lbenchmark", "-lpthread"])

    # Linked statically: what we hand out runs where these packages are not installed.
    _system_library("liburing", ["-l:liburing.a"])
    _system_library("isal", ["-lisal"])
    _system_library("absl", ["-labsl_" + lib for lib in _ABSL] + ["-lpthread"])
    _system_library("boost", ["-lpthread"])  # Asio and JSON are used header-only
