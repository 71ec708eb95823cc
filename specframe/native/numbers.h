// Floats in vectors, bfloat16, and rows of activations rounded as products with weights take them.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef PORTABLE
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define VNNI
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define MADD
#endif
#ifdef __AVX512BF16__
#define PAIRS
#endif
#if defined(PAIRS) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define AMX
#endif
#ifdef __ARM_FEATURE_DOTPROD
#define DOTS
#endif
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define HALF_DOTS
#endif
#endif

namespace {

constexpr int64_t BLOCK = 32, TILE = 16, MANY = 16;  // inputs a block, outputs a tile, rows at once

// How many of so many rows to take at a time, at most `most`, so that all times are about the same.
constexpr int64_t equal_share(int64_t rows, int64_t most) {
  const int64_t times = std::max<int64_t>(1, (rows + most - 1) / most);
  return (rows + times - 1) / times;
}

constexpr int64_t block_bytes(int64_t bits) { return TILE * BLOCK * bits / 8 + TILE * (bits == 4 ? 4 : bits == 8 ? 2 : 0); }

#ifdef __AVX512F__
constexpr int LANE = 16;
#elif defined(__aarch64__)
constexpr int LANE = 4;
#else
constexpr int LANE = 8;
#endif
constexpr int PARTS = TILE / LANE;  // of a tile's outputs

typedef float Lane __attribute__((vector_size(4 * LANE), aligned(4), may_alias));  // floats, wherever they stand

typedef uint32_t Words __attribute__((vector_size(4 * LANE)));

// Four bytes of activations, read where they stand: an instruction takes them from memory to all of its places.
typedef int32_t Word __attribute__((aligned(1), may_alias));

// Weights that are read next. Where a tile is read in several turns, each fetches its share of them.
struct Ahead {
  static constexpr int64_t ALL = 64;
  const uint8_t* from;
  int64_t share = ALL;  // of what is read, in 64ths

  // A turn's part of a tile of so many bytes.
  Ahead of(int64_t turn, int64_t turns, int64_t bytes) const {
    return {from + bytes * share / ALL * turn / turns, share / turns};
  }

  // Fetches so many bytes, and goes on by this turn's share of them.
  void fetch(int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(from + line);
    from += bytes * share / ALL;
  }
};

inline Lane lane(Words words) {
  Lane floats;
  std::memcpy(&floats, &words, sizeof(floats));
  return floats;
}

inline float sum(Lane lane) {
  typedef float Quarter __attribute__((vector_size(16)));
  Quarter parts[LANE / 4];
  std::memcpy(parts, &lane, sizeof(lane));
  for (int width = LANE / 8; width; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

inline float widen(uint16_t half) {
  const uint32_t word = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

inline uint16_t narrow(float value) {  // to the nearest, to even where two are
  uint32_t word;
  std::memcpy(&word, &value, sizeof(word));
  return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

// A scale, or a lowest value, of a block of weights: 16 bits as IEEE 754 has them.
#ifdef __aarch64__
using Scale = __fp16;
#else
using Scale = _Float16;
#endif

inline float scale_at(const uint8_t* at) {
#ifdef __F16C__
  uint16_t word;
  std::memcpy(&word, at, 2);
  return _cvtsh_ss(word);
#else
  Scale value;
  std::memcpy(&value, at, 2);
  return static_cast<float>(value);
#endif
}

// An activation next to weights of bfloat16.
#if defined(PAIRS) || defined(HALF_DOTS)
using Half = uint16_t;
inline Half rounded(float value) { return narrow(value); }
#else
using Half = float;
inline Half rounded(float value) { return widen(narrow(value)); }
#endif

#ifdef AMX

// Lets this process use the tile registers, once; false where the system refuses.
bool has_tiles() {
  constexpr int REQUEST = 0x1023, TILES = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, REQUEST, TILES) == 0;
  return granted;
}

// This thread's tiles: 0, the sums of so many rows; 1, their activations; 2, the weights.
void configure(int64_t rows) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64};
    uint8_t rows[16] = {};
  } shape;
  shape.rows[0] = shape.rows[1] = static_cast<uint8_t>(rows);
  shape.rows[2] = 16;
  _tile_loadconfig(&shape);
}

#endif

// Rows rounded to 8 bits; or to bfloat16, for weights of 16; or as they are, for weights of 32.
struct Codes {
  int64_t inputs, bits;
  std::unique_ptr<float[]> single;        // [M, inputs]
  std::unique_ptr<Half[]> half;           // [M, inputs]
  std::unique_ptr<int8_t[]> code;         // [M, inputs]
  std::unique_ptr<float[]> scale, total;  // [M, blocks]: of the codes, and scale times their sum
  std::unique_ptr<int32_t[]> shift;       // [M, blocks]: what their products with 128 add up to, negative

  Codes(int64_t rows, int64_t most, int64_t weight) : inputs(most), bits(weight) {
    if (bits >= 16) {
      if (bits == 16) half.reset(new Half[rows * most]);
      else single.reset(new float[rows * most]);
      return;
    }
    code.reset(new int8_t[rows * most]);
    scale.reset(new float[rows * most / BLOCK]);
    total.reset(new float[rows * most / BLOCK]);
    shift.reset(new int32_t[rows * most / BLOCK]);
  }

  // Takes so many values of a row, from the input `first` on: whole blocks.
  void set(int64_t row, const float* values, int64_t count, int64_t first = 0) {
    if (bits == 32) {
      std::memcpy(single.get() + row * inputs + first, values, count * sizeof(float));
      return;
    }
    if (bits == 16) {
      for (int64_t i = 0; i < count; ++i) half[row * inputs + first + i] = rounded(values[i]);
      return;
    }
    int8_t* to = code.get() + row * inputs + first;
    for (int64_t block = first / BLOCK; block < (first + count) / BLOCK; ++block, values += BLOCK, to += BLOCK) {
      uint32_t most_bits = 0;  // of a magnitude: as integers, they are in order, and no number is above infinity
      for (int i = 0; i < BLOCK; ++i) {
        uint32_t word;
        std::memcpy(&word, values + i, sizeof(word));
        most_bits = std::max(most_bits, word & 0x7fffffff);
      }
      float most;
      std::memcpy(&most, &most_bits, sizeof(most));
      const int64_t at = row * (inputs / BLOCK) + block;
      if (most_bits >= 0x7f800000) {  // what is infinite or not a number spoils the row, not its block alone
        std::memset(to, 0, BLOCK);
        scale[at] = total[at] = NAN;
        shift[at] = 0;
        continue;
      }
      const float inverse = most > 0 ? 127.f / most : 0.f;
      int32_t sum = 0;
      for (int i = 0; i < BLOCK; ++i) {
        const int32_t rounded = static_cast<int32_t>(std::nearbyintf(values[i] * inverse));
        to[i] = static_cast<int8_t>(rounded);
        sum += rounded;
      }
      scale[at] = most / 127.f;
      total[at] = scale[at] * static_cast<float>(sum);
      shift[at] = -128 * sum;
    }
  }
};

}  // namespace
