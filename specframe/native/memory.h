// Keys and values of one head in each of the forms that a cache keeps them in, as attention reads and writes them.
//
// What is read are numbers of 32 bits, whatever the form, so attention adds up in the same order over each.

#pragma once

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

constexpr int64_t SPAN = 64;     // tokens whose keys share scales, number by number
constexpr int64_t RECENT = 128;  // the newest tokens, kept whole

// Codes of 8 bits, split in an upper and a lower half of 4, for the slots below `slots`: the upper halves alone are a coarser
// copy. From there on, numbers of 32 bits. Of 32 numbers the first 16 are the lower halves of 16 bytes.
struct SplitInt8 {
  static constexpr bool WIDENS = true;
  const uint8_t *key_upper, *key_lower, *value_upper, *value_lower;  // [slots, size / 2]
  const float* key_scales;                                           // [slots / SPAN, 2, size]: a step, and the lowest
  const float* value_scales;                                         // [slots, 2]
  float *keys, *values;                                              // [.., size]
  int64_t size, slots;
  bool upper;  // whether the upper halves are read alone

  const float* key(int64_t slot, float* room) const {
    if (slot >= slots) return keys + (slot - slots) * size;
    const float *step = key_scales + slot / SPAN * 2 * size, *lowest = step + size;
    for (int64_t at = 0; at < size; at += LANE)
      *reinterpret_cast<Lane*>(room + at) = codes(key_upper, key_lower, slot, at) * widened(step + at) + widened(lowest + at);
    return room;
  }

  Lane value(int64_t slot, int64_t at) const {
    if (slot >= slots) return widened(values + (slot - slots) * size + at);
    return codes(value_upper, value_lower, slot, at) * value_scales[2 * slot] + value_scales[2 * slot + 1];
  }

  template <int LOCALITY>
  void fetch(int64_t slot, int64_t at, int64_t count) const {
    fetch_halves<LOCALITY>(key_upper, key_lower, slot, at, count);
  }

  void fetch_value(int64_t slot, int64_t at, int64_t count) const {
    fetch_halves<3>(value_upper, value_lower, slot, at, count);
  }

  void put(int64_t slot, const float* key, const float* value) const {
    std::memcpy(keys + (slot - slots) * size, key, size * sizeof(float));
    std::memcpy(values + (slot - slots) * size, value, size * sizeof(float));
  }

 private:
  typedef uint8_t Bytes __attribute__((vector_size(LANE), aligned(1), may_alias));

  Lane codes(const uint8_t* high, const uint8_t* low, int64_t slot, int64_t at) const {
    const int64_t from = slot * size / 2 + at / 32 * 16 + at % 16;
    const Bytes a = *reinterpret_cast<const Bytes*>(high + from);
    const bool second = at % 32 >= 16;
    if (upper) return numbers((second ? a & 0xf0 : a << 4) | 8);  // the middle of what it stands for
    const Bytes b = *reinterpret_cast<const Bytes*>(low + from);
    return numbers(second ? (a & 0xf0) | (b >> 4) : (a << 4) | (b & 0x0f));
  }

  static Lane numbers(Bytes bytes) {
#ifdef __AVX512F__
    __m128i from;
    std::memcpy(&from, &bytes, sizeof(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(from));
#else
    return __builtin_convertvector(bytes, Lane);
#endif
  }

  template <int LOCALITY>
  void fetch_halves(const uint8_t* high, const uint8_t* low, int64_t slot, int64_t at, int64_t count) const {
    if (slot >= slots) return;
    for (int64_t i = (slot * size + at) / 2; i < (slot * size + at + count) / 2; i += 64) {
      __builtin_prefetch(high + i, 0, LOCALITY);
      if (!upper) __builtin_prefetch(low + i, 0, LOCALITY);
    }
  }
};

}  // namespace
