// Further versions of a symbol: one implementation under several version nodes.
#pragma once

// Exports `implementation` as symbol `name` in version node `node`; at is "@" or, for the one that
// new programs link to, "@@". `alias` is a name for the assembler, unique in the library. The
// implementation is an extern "C" symbol of the same file.
#define VERBENA_SYMVER(alias, implementation, kind, name, at, node) \
  asm(".globl " alias "\n"                                          \
      ".type " alias ", @" kind "\n"                                \
      ".set " alias ", " implementation "\n"                        \
      ".symver " alias ", " name at node "\n")

// A function that versions.lds exports from IBVERBS_PRIVATE_34, in the later private nodes too.
#define VERBENA_ALSO_IN_LATER_PRIVATE_NODES(kind, name)                                \
  VERBENA_SYMVER("v57_" #name, #name, kind, #name, "@", "IBVERBS_PRIVATE_57");         \
  VERBENA_SYMVER("v59_" #name, #name, kind, #name, "@", "IBVERBS_PRIVATE_59");         \
  VERBENA_SYMVER("v64_" #name, #name, kind, #name, "@", "IBVERBS_PRIVATE_64")
