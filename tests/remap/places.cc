#include <algorithm>
#include <cstring>

#include "tests/remap/agent.h"
#include "tests/remap/state.h"

namespace verbena::remap {

using client::Mapping;
using client::MapsReader;

static bool IsPayload(const Mapping& mapping) {
  return mapping.is_shared && std::strncmp(mapping.name, "/memfd:verbena-payload", 22) == 0;
}

static bool Overlaps(const Mapping& mapping, const void* at, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  return mapping.begin < begin + bytes && begin < mapping.end;
}

// Memory whose reading has no effect. Not the agent's own: it changes while it is compared.
static bool MayBePicked(const Mapping& mapping) {
  if (!mapping.is_readable) return false;
  int here;
  if (Overlaps(mapping, &here, 1) || Overlaps(mapping, &state, sizeof(state)) ||
      Overlaps(mapping, state.seen, kRangeBytesMax + 2 * kPageBytes) ||
      Overlaps(mapping, state.snapshot, kRangeBytesMax + 2 * kPageBytes) ||
      Overlaps(mapping, state.flag, kPageBytes)) {
    return false;
  }
  if (IsPayload(mapping)) return true;
  // A file may be cut off meanwhile, a device's memory may act.
  return mapping.inode == 0 && !mapping.is_shared && mapping.name[0] != '(' &&
         (mapping.name[0] == '\0' || std::strcmp(mapping.name, "[heap]") == 0 ||
          std::strncmp(mapping.name, "[anon:", 6) == 0);
}

bool PickMapping(Mapping* out) {
  MapsReader maps;
  Mapping mapping;
  uint32_t weight = 0;
  uint64_t mapped_bytes = 0;
  while (maps.IsOpen() && maps.Next(&mapping)) {
    if (IsPayload(mapping)) mapped_bytes += mapping.end - mapping.begin;
    if (!MayBePicked(mapping)) continue;
    const uint32_t more = !mapping.is_writable ? 1 : mapping.name[0] == '[' ? 40 : 10;
    weight += more;
    if (Draw().Below(weight) < more) *out = mapping;
  }
  state.counts.mapped_bytes_max = std::max(state.counts.mapped_bytes_max, mapped_bytes);
  return weight != 0;
}

bool FindRuns(uintptr_t begin, uintptr_t end, Held* held) {
  held->run_count = 0;
  held->is_odd = false;
  MapsReader maps;
  Mapping mapping;
  uintptr_t next = begin;
  while (maps.IsOpen() && maps.Next(&mapping)) {
    const uintptr_t from = std::max(mapping.begin, begin), to = std::min(mapping.end, end);
    if (from >= to) continue;
    if (from != next || !mapping.is_readable) return false;
    next = to;
    if (!IsPayload(mapping)) continue;
    const Run run = {from, to, mapping.inode, mapping.offset + (from - mapping.begin)};
    if (held->run_count == kRunsMax) {
      held->is_odd = true;
    } else {
      held->runs[held->run_count++] = run;
    }
  }
  return next == end;
}

bool IsWhereItWas(const Held& held) {
  static Held now;
  const auto begin = reinterpret_cast<uintptr_t>(held.mr->addr);
  if (!FindRuns(begin, begin + held.mr->length, &now) || held.is_odd || now.is_odd) return false;
  for (uint32_t i = 0; i < held.run_count; ++i) {
    const Run& old = held.runs[i];
    uintptr_t next = old.begin;
    for (uint32_t k = 0; k < now.run_count; ++k) {
      const Run& run = now.runs[k];
      const uintptr_t from = std::max(run.begin, old.begin), to = std::min(run.end, old.end);
      if (from >= to) continue;
      if (from != next || run.inode != old.inode ||
          run.offset - run.begin != old.offset - old.begin) {
        return false;
      }
      next = to;
    }
    if (next != old.end) return false;
  }
  return true;
}

}  // namespace verbena::remap
