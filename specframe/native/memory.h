// Keys and values of one head in each of the forms that a cache keeps them in, as attention reads and writes them.
//
// What is read are numbers of 32 bits, whatever the form, so attention adds up in the same order over each.

#pragma once

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "gemm.h"

namespace {

constexpr int64_t HEAD = 256;  // the largest head

inline Lane widened(const float* from) { return *reinterpret_cast<const Lane*>(from); }

inline Lane widened(const uint16_t* from) {
#ifdef __AVX512F__
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
#else
  Lane to;
  for (int i = 0; i < LANE; ++i) to[i] = widen(from[i]);
  return to;
#endif
}

// Numbers of 32 bits, or of 16 (bfloat16): [slots, size] each, where size is a multiple of 16 and HEAD at most.
template <typename Number>
struct Numbers {
  static constexpr bool WIDENS = sizeof(Number) < sizeof(float);
  Number *keys, *values;
  int64_t size;

  // A key, which may be put into `room` for it.
  const float* key(int64_t slot, float* room) const {
    const Number* from = keys + slot * size;
    if constexpr (WIDENS) {
      for (int64_t i = 0; i < size; i += LANE) *reinterpret_cast<Lane*>(room + i) = widened(from + i);
      return room;
    } else {
      return from;
    }
  }

  Lane value(int64_t slot, int64_t at) const { return widened(values + slot * size + at); }

  // Fetches `count` numbers of the keys from a slot on into a cache of the processor.
  template <int LOCALITY>
  void fetch(int64_t slot, int64_t at, int64_t count) const {
    const Number* from = keys + slot * size + at;
    for (int64_t i = 0; i < count; i += LINE) __builtin_prefetch(from + i, 0, LOCALITY);
  }

  void fetch_value(int64_t slot, int64_t at, int64_t count) const {
    const Number* from = values + slot * size + at;
    for (int64_t i = 0; i < count; i += LINE) __builtin_prefetch(from + i);
  }

  void put(int64_t slot, const float* key, const float* value) const {
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (WIDENS) {
        keys[slot * size + i] = narrow(key[i]);
        values[slot * size + i] = narrow(value[i]);
      } else {
        keys[slot * size + i] = key[i];
        values[slot * size + i] = value[i];
      }
    }
  }

 private:
  static constexpr int64_t LINE = 64 / sizeof(Number);
};

}  // namespace
