"""Precompiled headers: read once for each way of compiling, not once for each source."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    header = ctx.actions.declare_file(ctx.attr.name + ".h")
    ctx.actions.write(header, "".join(["#include <%s>\n" % name for name in ctx.attr.includes]))
    precompiled = ctx.actions.declare_file(header.basename + ".gch", sibling = header)
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = precompiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
    )
    arguments = ctx.actions.args()
    arguments.add_all(["-x", "c++-header"])
    arguments.add_all(cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    ))
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = [arguments],
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [precompiled],
        mnemonic = "CppPrecompile",
    )
    files = depset([header, precompiled])
    return [
        DefaultInfo(files = files),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = files)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    doc = """NAME.h, which includes `includes`, and NAME.h.gch, which the compiler takes in its place where
a source is compiled with these very flags and begins with `-include .../NAME.h`.""",
    attrs = {
        "includes": attr.string_list(mandatory = True),
        "copts": attr.string_list(doc = "what the sources have besides the build's flags"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
