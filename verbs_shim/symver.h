// Further versions of a symbol: one implementation under several version nodes.
#pragma once

// Exports `implementation` as symbol `name` in version node `node`; at is "@" or, for the one that
// new programs link to, "@@". `alias` is a name for the assembler, unique in the library. The
// implementation is an extern "C" symbol of the same file.
#define VERBENA_SYMVER(alias, implementation, kind, name, at, node) \
  asm(".globl " alias                                               \
      "\n"                                                          \
      ".type " alias ", @" kind                                     \
      "\n"                                                          \
      ".set " alias ", " implementation                             \
      "\n"                                                          \
      ".symver " alias ", " name at node "\n")

// Names the version that new programs link to, where the symbol has further versions: versions.lds
// alone can't tell them apart.
#define VERBENA_DEFAULT_VERSION(name, node) asm(".symver " #name ", " #name "@@@" node "\n")

// For the functions that stubs.cc also exports from IBVERBS_1.0.
#define VERBENA_VERSION_1_1(name) VERBENA_DEFAULT_VERSION(name, "IBVERBS_1.1")

// Exports a private symbol from all private nodes.
#define VERBENA_IN_ALL_PRIVATE_NODES(kind, name)                               \
  VERBENA_DEFAULT_VERSION(name, "IBVERBS_PRIVATE_34");                         \
  VERBENA_SYMVER("v57_" #name, #name, kind, #name, "@", "IBVERBS_PRIVATE_57"); \
  VERBENA_SYMVER("v59_" #name, #name, kind, #name, "@", "IBVERBS_PRIVATE_59"); \
  VERBENA_SYMVER("v64_" #name, #name, kind, #name, "@", "IBVERBS_PRIVATE_64")
