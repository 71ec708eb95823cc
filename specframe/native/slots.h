// Moves of entries from slot to slot.

#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

// Copies slots of planes and heads, given the bytes from one to the next, all reads of a head before its writes. Returns 0, or 1 where
// there is no memory; nothing is then changed.
extern "C" int specframe_move(char* planes, int64_t many, int64_t plane, int64_t heads, int64_t head, int64_t slot, int64_t count,
                              const int64_t* from, const int64_t* to) try {
  std::vector<char> taken(count * slot);
  for (int64_t i = 0; i < many * heads; ++i) {
    char* own = planes + i / heads * plane + i % heads * head;
    for (int64_t k = 0; k < count; ++k) std::memcpy(taken.data() + k * slot, own + from[k] * slot, slot);
    for (int64_t k = 0; k < count; ++k) std::memcpy(own + to[k] * slot, taken.data() + k * slot, slot);
  }
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
