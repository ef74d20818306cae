#include "tests/programs/shrink.h"

#include <algorithm>

namespace verbena::programs {
namespace {

// Removes pieces of `items` that are not needed: `fails` tries the rest.
template <typename T, typename Fails>
void ShrinkList(std::vector<T>* items, size_t keep_min, Fails fails) {
  for (size_t piece = std::max<size_t>(items->size() / 2, 1); items->size() > keep_min;) {
    bool shrank = false;
    // From the end: what is made last is needed least.
    for (size_t end = items->size(); end > 0 && items->size() > keep_min;) {
      const size_t begin = end > piece ? end - piece : 0;
      std::vector<T> rest(items->begin(), items->begin() + static_cast<ptrdiff_t>(begin));
      rest.insert(rest.end(), items->begin() + static_cast<ptrdiff_t>(end), items->end());
      if (rest.size() >= keep_min && fails(rest)) {
        *items = std::move(rest);
        shrank = true;
      }
      end = begin;
    }
    if (piece > 1) {
      piece /= 2;
    } else if (!shrank) {
      break;
    }
  }
}

}  // namespace

Program Shrink(Program program, const std::function<bool(const Program&)>& fails, int tries_max) {
  int tries = 0;
  auto still_fails = [&](const Program& candidate) {
    return tries++ < tries_max && fails(candidate);
  };
  ShrinkList(&program, 1, still_fails);
  for (size_t i = 0; i < program.size(); ++i) {
    std::vector<Wr> wrs = program[i].wrs;
    ShrinkList(&wrs, 1, [&](const std::vector<Wr>& rest) {
      Program candidate = program;
      candidate[i].wrs = rest;
      return still_fails(candidate);
    });
    program[i].wrs = wrs;
  }
  return program;
}

}  // namespace verbena::programs
