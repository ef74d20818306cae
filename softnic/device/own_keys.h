// Remote keys of a PD's own: numbers that the program chooses, and what they lead to.
//
// Thread: the shard.   Trust: keys are the client's and the wire's choice; a tree's depth is the
// same whatever they are.
#pragma once

#include <cstdint>
#include <map>

namespace verbena::softnic {

struct Mr;

class OwnKeys {
 public:
  // False: the key is taken.
  bool Add(uint32_t key, Mr* mr) { return regions_.emplace(key, mr).second; }
  void Remove(uint32_t key) { regions_.erase(key); }
  Mr* Find(uint32_t key) const {
    auto found = regions_.find(key);
    return found == regions_.end() ? nullptr : found->second;
  }

 private:
  std::map<uint32_t, Mr*> regions_;
};

}  // namespace verbena::softnic
