"""Native C++ rules under the names that Bazel's own files load from rules_cc."""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
objc_library = native.objc_library

def cc_flags_supplier(name, **_kwargs):
    pass

def compiler_flag(name, **_kwargs):
    pass
