// Products of rows with a tile of weights of 4, 8, 16 or 32 bits, by the instructions that the processor has.
//
// A weight stands in tiles of 16 outputs. With 32 bits a tile holds, for each input, the floats of its 16 outputs; with
// 16, for each pair of inputs, the bfloat16 of them, and activations are rounded to bfloat16. With fewer it holds, for each block of 32 inputs, the codes of its 16 outputs and
// behind them a scale for each output in half precision, with 4 bits also a lowest value:
// weight = scale * code + low, where codes of 8 bits are stored plus 128 and low is -128 * scale.
// Activations are rounded to 8 bits, with a scale for each row and block; products of codes are exact integers.
//
// A row's sums are added in one order, however many rows there are.
//
// Every product also takes weights that will be read next and are fetched meanwhile: the processor itself looks hardly
// further than a page, and with more rows it would compute and wait for memory in turns.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

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
#if defined(VNNI) || defined(MADD) || defined(PAIRS)
#include <immintrin.h>
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

// An activation next to weights of bfloat16.
#ifdef PAIRS
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

#ifdef VNNI

// R rows' products with T tiles that stand one behind the other; tile t has the outputs from t MANY on. The activations of a
// block are read once for all its tiles: with several rows, reading them takes longer than multiplying.
template <int BITS, int R, int T = 1>
inline void multiply_tile(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                          float (*out)[TILE]) {
  __m512 sums[T][R];
  for (int t = 0; t < T; ++t)
    for (int r = 0; r < R; ++r) sums[t][r] = _mm512_setzero_ps();
  const __m512i nibble = _mm512_set1_epi8(15);
  const int64_t bytes = blocks * block_bytes(BITS), wide = x.inputs / BLOCK;
  const auto floats = [](const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  };
  for (int64_t block = 0; block < blocks; ++block, data += block_bytes(BITS)) {
    ahead.fetch(T * block_bytes(BITS));
    const int8_t* values = x.code.get() + row * x.inputs + BLOCK * block;
    const int64_t at = row * wide + block;
    __m512i products[T][R];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t)
        products[t][r] = BITS == 4 ? _mm512_setzero_si512() : _mm512_set1_epi32(x.shift[at + r * wide]);
    const auto add = [&](const __m512i(&codes)[T], int j) {
      for (int r = 0; r < R; ++r) {
        const __m512i quad = _mm512_set1_epi32(reinterpret_cast<const Word*>(values + r * x.inputs)[j]);
        for (int t = 0; t < T; ++t) products[t][r] = _mm512_dpbusd_epi32(products[t][r], codes[t], quad);
      }
    };
    for (int j = 0; j < BITS; ++j) {
      __m512i codes[T], upper[T];
      for (int t = 0; t < T; ++t) {
        codes[t] = _mm512_loadu_si512(data + t * bytes + 64 * j);
        if constexpr (BITS == 4) {
          upper[t] = _mm512_and_si512(_mm512_srli_epi16(codes[t], 4), nibble);
          codes[t] = _mm512_and_si512(codes[t], nibble);
        }
      }
      add(codes, j);
      if constexpr (BITS == 4) add(upper, j + 4);
    }
    for (int t = 0; t < T; ++t) {
      const uint8_t* behind = data + t * bytes + TILE * BLOCK * BITS / 8;
      const __m512 scale = floats(behind);
      [[maybe_unused]] __m512 low;
      if constexpr (BITS == 4) low = floats(behind + 2 * TILE);
      for (int r = 0; r < R; ++r) {
        const __m512 share = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale[at + r * wide]));
        sums[t][r] = _mm512_fmadd_ps(share, _mm512_cvtepi32_ps(products[t][r]), sums[t][r]);
        if constexpr (BITS == 4) sums[t][r] = _mm512_fmadd_ps(low, _mm512_set1_ps(x.total[at + r * wide]), sums[t][r]);
      }
    }
  }
  for (int t = 0; t < T; ++t)
    for (int r = 0; r < R; ++r) _mm512_storeu_ps(out[t * MANY + r], sums[t][r]);
}

#elif defined(MADD)

inline __m256i quad(const int8_t* values) {  // four inputs, over and over
  int32_t four;
  std::memcpy(&four, values, sizeof(four));
  return _mm256_set1_epi32(four);
}

// Products of unsigned with signed bytes are added in pairs of 16 bits. Eight of 4-bit codes fit into them, one after the
// other; codes of 8 bits, taken as signed, fit once.
template <int BITS, int R>
inline void multiply_tile(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                          float (*out)[TILE]) {
  __m256 sums[R][2] = {};
  const __m256i nibble = _mm256_set1_epi8(15), middle = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
  for (int64_t block = 0; block < blocks; ++block, data += block_bytes(BITS)) {
    ahead.fetch(block_bytes(BITS));
    const uint8_t* behind = data + TILE * BLOCK * BITS / 8;
    const int8_t* values = x.code.get() + row * x.inputs + BLOCK * block;
    for (int half = 0; half < 2; ++half) {  // of the outputs
      const auto load = [&](int j) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + 64 * j + 32 * half)); };
      const auto floats = [&](int place) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(behind + 2 * place + 16 * half)));
      };
      const __m256 scale = floats(0);
      __m256i codes[8];
      if constexpr (BITS == 4) {
        for (int j = 0; j < 4; ++j) {
          const __m256i pair = load(j);
          codes[j] = _mm256_and_si256(pair, nibble);
          codes[j + 4] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), nibble);
        }
      } else {
        for (int j = 0; j < 8; ++j) codes[j] = _mm256_xor_si256(load(j), middle);
      }
      for (int r = 0; r < R; ++r) {
        const int8_t* inputs = values + r * x.inputs;
        const int64_t at = (row + r) * (x.inputs / BLOCK) + block;
        __m256i total;
        if constexpr (BITS == 4) {
          __m256i pairs = _mm256_maddubs_epi16(codes[0], quad(inputs));
          for (int j = 1; j < 8; ++j) pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(codes[j], quad(inputs + 4 * j)));
          total = _mm256_madd_epi16(pairs, ones);
        } else {
          total = _mm256_setzero_si256();
          for (int j = 0; j < 8; ++j) {
            const __m256i signs = _mm256_sign_epi8(quad(inputs + 4 * j), codes[j]);
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[j]), signs);
            total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, ones));
          }
        }
        const __m256 share = _mm256_mul_ps(scale, _mm256_set1_ps(x.scale[at]));
        sums[r][half] = _mm256_fmadd_ps(share, _mm256_cvtepi32_ps(total), sums[r][half]);
        if constexpr (BITS == 4) sums[r][half] = _mm256_fmadd_ps(floats(TILE), _mm256_set1_ps(x.total[at]), sums[r][half]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm256_storeu_ps(out[r], sums[r][0]);
    _mm256_storeu_ps(out[r] + 8, sums[r][1]);
  }
}

#else

inline float half(const uint8_t* at) {
  _Float16 value;
  std::memcpy(&value, at, 2);
  return static_cast<float>(value);
}

template <int BITS, int R>
inline void multiply_tile(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                          float (*out)[TILE]) {
  for (int r = 0; r < R; ++r) std::fill_n(out[r], TILE, 0.f);
  for (int64_t block = 0; block < blocks; ++block, data += block_bytes(BITS)) {
    ahead.fetch(block_bytes(BITS));
    const uint8_t* behind = data + TILE * BLOCK * BITS / 8;
    float scale[TILE], low[TILE];
    for (int i = 0; i < TILE; ++i) {
      scale[i] = half(behind + 2 * i);
      low[i] = BITS == 4 ? half(behind + 2 * TILE + 2 * i) : -128.f * scale[i];
    }
    for (int r = 0; r < R; ++r) {
      const int8_t* values = x.code.get() + (row + r) * x.inputs + BLOCK * block;
      int32_t sums[TILE] = {};
      for (int j = 0; j < 8; ++j)
        for (int i = 0; i < TILE; ++i)
          for (int k = 0; k < 4; ++k) {
            const int32_t code = BITS == 8 ? data[64 * j + 4 * i + k]
                                 : j < 4   ? data[64 * j + 4 * i + k] & 15
                                           : data[64 * (j - 4) + 4 * i + k] >> 4;
            sums[i] += code * values[4 * j + k];
          }
      const int64_t at = (row + r) * (x.inputs / BLOCK) + block;
      for (int i = 0; i < TILE; ++i) {
        out[r][i] = std::fma(scale[i] * x.scale[at], static_cast<float>(sums[i]), out[r][i]);
        out[r][i] = std::fma(low[i], x.total[at], out[r][i]);
      }
    }
  }
}

#endif

#ifdef PAIRS

constexpr int64_t TOGETHER = 12;  // rows whose sums fit into the registers; they read a weight once

// R rows' products with T tiles of bfloat16 (see multiply_tile): 16 pairs of inputs a block, of 16 outputs each.
template <int R, int T = 1>
inline void multiply_tile_halves(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                                 float (*out)[TILE]) {
  const Half* values = x.half.get() + row * x.inputs;
  const int64_t bytes = blocks * block_bytes(16);
  __m512 first[T][R], second[T][R];  // two sums a row: a product takes several cycles
  for (int t = 0; t < T; ++t)
    for (int r = 0; r < R; ++r) first[t][r] = second[t][r] = _mm512_setzero_ps();
  for (int64_t k = 0; k < blocks * BLOCK; k += 4, data += 8 * TILE) {
    ahead.fetch(8 * T * TILE);
    __m512bh a[T], b[T];
    for (int t = 0; t < T; ++t) {
      a[t] = (__m512bh)_mm512_loadu_si512(data + t * bytes);
      b[t] = (__m512bh)_mm512_loadu_si512(data + t * bytes + 4 * TILE);
    }
    for (int r = 0; r < R; ++r) {
      const Word* pairs = reinterpret_cast<const Word*>(values + r * x.inputs + k);
      const __m512bh p = (__m512bh)_mm512_set1_epi32(pairs[0]), q = (__m512bh)_mm512_set1_epi32(pairs[1]);
      for (int t = 0; t < T; ++t) {
        first[t][r] = _mm512_dpbf16_ps(first[t][r], a[t], p);
        second[t][r] = _mm512_dpbf16_ps(second[t][r], b[t], q);
      }
    }
  }
  for (int t = 0; t < T; ++t)
    for (int r = 0; r < R; ++r) _mm512_storeu_ps(out[t * MANY + r], _mm512_add_ps(first[t][r], second[t][r]));
}

#else

constexpr int64_t TOGETHER = 6;

template <int R>
inline void multiply_tile_halves(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                                 float (*out)[TILE]) {
  const Half* values = x.half.get() + row * x.inputs;
  Lane sums[R][PARTS] = {};
  for (int64_t k = 0; k < blocks * BLOCK; k += 2, data += 4 * TILE) {
    ahead.fetch(4 * TILE);
    for (int part = 0; part < PARTS; ++part) {
      Words pairs;
      std::memcpy(&pairs, data + 4 * LANE * part, sizeof(pairs));
      const Lane even = lane(pairs << 16), odd = lane(pairs & 0xffff0000u);
      for (int r = 0; r < R; ++r) {
        sums[r][part] += even * values[r * x.inputs + k];
        sums[r][part] += odd * values[r * x.inputs + k + 1];
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int part = 0; part < PARTS; ++part) *reinterpret_cast<Lane*>(out[r] + LANE * part) = sums[r][part];
}

#endif

using Product = void (*)(const uint8_t*, Ahead, int64_t, const Codes&, int64_t, float (*)[TILE]);

// The same with a tile of floats. Where all outputs of a tile are one lane, even and odd inputs have sums of their own: a
// product takes several cycles.
constexpr int CHAINS = PARTS == 1 ? 2 : 1;
constexpr int64_t TOGETHER_SINGLES = PARTS == 1 ? 12 : 6;

template <int R>
inline void multiply_tile_singles(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                                  float (*out)[TILE]) {
  const float *values = x.single.get() + row * x.inputs, *weight = reinterpret_cast<const float*>(data);
  Lane sums[R][CHAINS][PARTS] = {};
  for (int64_t k = 0; k < blocks * BLOCK; k += CHAINS)
    for (int chain = 0; chain < CHAINS; ++chain, weight += TILE) {
      ahead.fetch(4 * TILE);
      for (int part = 0; part < PARTS; ++part) {
        const Lane at = *reinterpret_cast<const Lane*>(weight + LANE * part);
        for (int r = 0; r < R; ++r) sums[r][chain][part] += at * values[r * x.inputs + k + chain];
      }
    }
  for (int r = 0; r < R; ++r)
    for (int part = 0; part < PARTS; ++part) {
      for (int chain = 1; chain < CHAINS; ++chain) sums[r][0][part] += sums[r][chain][part];
      *reinterpret_cast<Lane*>(out[r] + LANE * part) = sums[r][0][part];
    }
}

constexpr Product SINGLES[] = {multiply_tile_singles<1>, multiply_tile_singles<2>, multiply_tile_singles<3>,
                               multiply_tile_singles<4>, multiply_tile_singles<5>, multiply_tile_singles<6>,
                               multiply_tile_singles<7>, multiply_tile_singles<8>, multiply_tile_singles<9>,
                               multiply_tile_singles<10>, multiply_tile_singles<11>, multiply_tile_singles<12>};

// The same of up to MANY rows, at most `most` at once; `bytes` are a tile's.
inline void multiply_in_turns(const Product* products, int64_t most, int64_t bytes, const uint8_t* data, Ahead ahead,
                              int64_t blocks, const Codes& x, int64_t row, int64_t rows, float (*out)[TILE]) {
  const int64_t share = equal_share(rows, most), turns = (rows + share - 1) / share;
  for (int64_t turn = 0; turn < turns; ++turn) {
    const int64_t r = turn * share;
    products[std::min(share, rows - r) - 1](data, ahead.of(turn, turns, bytes), blocks, x, row + r, out + r);
  }
}

constexpr Product HALVES[] = {multiply_tile_halves<1>, multiply_tile_halves<2>, multiply_tile_halves<3>,
                              multiply_tile_halves<4>, multiply_tile_halves<5>, multiply_tile_halves<6>,
#ifdef PAIRS
                              multiply_tile_halves<7>, multiply_tile_halves<8>, multiply_tile_halves<9>,
                              multiply_tile_halves<10>, multiply_tile_halves<11>, multiply_tile_halves<12>,
#endif
};

// Products of up to MANY rows; with AMX the tiles are configured for so many.
inline void multiply_halves(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                            int64_t rows, bool tiles, float (*out)[TILE]) {
#ifdef AMX
  if (tiles) {
    const uint16_t* values = x.half.get() + row * x.inputs;
    _tile_zero(0);
    for (int64_t block = 0; block < blocks; ++block) {
      ahead.fetch(block_bytes(16));
      _tile_loadd(1, values + BLOCK * block, 2 * x.inputs);
      _tile_loadd(2, data + block_bytes(16) * block, 4 * TILE);
      _tile_dpbf16ps(0, 1, 2);
    }
    _tile_stored(0, out, 4 * TILE);
    return;
  }
#endif
  multiply_in_turns(HALVES, TOGETHER, blocks * block_bytes(16), data, ahead, blocks, x, row, rows, out);
}

template <int BITS>
constexpr Product CODES[] = {multiply_tile<BITS, 1>, multiply_tile<BITS, 2>, multiply_tile<BITS, 3>, multiply_tile<BITS, 4>,
                             multiply_tile<BITS, 5>, multiply_tile<BITS, 6>, multiply_tile<BITS, 7>, multiply_tile<BITS, 8>,
#ifdef VNNI
                             multiply_tile<BITS, 9>, multiply_tile<BITS, 10>, multiply_tile<BITS, 11>, multiply_tile<BITS, 12>,
#endif
};

constexpr int64_t GROUP = sizeof(CODES<8>) / sizeof(Product);  // rows whose sums fit into the registers

constexpr int64_t GROUP_OF_TWO = 6;  // rows at once with two tiles

// The products of so many rows with two tiles of so many bits; null where it takes less time to multiply one after the
// other: in 8 and 16 bits until the products take longer than reading the weights.
inline Product with_two(int64_t bits, [[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t count) {
#ifdef VNNI
  static constexpr Product FOUR[] = {multiply_tile<4, 1, 2>, multiply_tile<4, 2, 2>, multiply_tile<4, 3, 2>,
                                     multiply_tile<4, 4, 2>, multiply_tile<4, 5, 2>, multiply_tile<4, 6, 2>};
  static constexpr Product EIGHT[] = {multiply_tile<8, 1, 2>, multiply_tile<8, 2, 2>, multiply_tile<8, 3, 2>,
                                      multiply_tile<8, 4, 2>, multiply_tile<8, 5, 2>, multiply_tile<8, 6, 2>};
  if (bits == 4 && rows > 1) return FOUR[count - 1];
  if (bits == 8 && rows > 6) return EIGHT[count - 1];
#endif
#ifdef PAIRS
  static constexpr Product SIXTEEN[] = {multiply_tile_halves<1, 2>, multiply_tile_halves<2, 2>, multiply_tile_halves<3, 2>,
                                        multiply_tile_halves<4, 2>, multiply_tile_halves<5, 2>, multiply_tile_halves<6, 2>};
  if (bits == 16 && rows > 15) return SIXTEEN[count - 1];
#endif
  return nullptr;
}

}  // namespace
