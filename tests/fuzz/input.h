// A fuzzer's bytes read as numbers and pieces; when they run out, zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbena::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  size_t left() const { return left_; }

  template <typename T>
  T Take() {
    T value{};
    TakeBytes(&value, sizeof(value));
    return value;
  }
  // Fills `out`; returns how many bytes came from the input.
  size_t TakeBytes(void* out, size_t bytes) {
    size_t taken = std::min(bytes, left_);
    if (taken != 0) std::memcpy(out, data_, taken);
    if (taken < bytes) std::memset(static_cast<uint8_t*>(out) + taken, 0, bytes - taken);
    data_ += taken;
    left_ -= taken;
    return taken;
  }
  const uint8_t* data() const { return data_; }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace verbena::fuzz

// libFuzzer's entry; in the replay test, the replay's.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
