// Products of activations in 8 bits with a tile of weights in 4 or 8, by each processor's instructions.

#pragma once

#include "numbers.h"

namespace {

#ifdef VNNI

// R rows' products with T tiles that stand one after the other; tile t has the outputs from t MANY on. The activations of a
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
      const uint8_t* after = data + t * bytes + TILE * BLOCK * BITS / 8;
      const __m512 scale = floats(after);
      [[maybe_unused]] __m512 low;
      if constexpr (BITS == 4) low = floats(after + 2 * TILE);
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
    const uint8_t* after = data + TILE * BLOCK * BITS / 8;
    const int8_t* values = x.code.get() + row * x.inputs + BLOCK * block;
    for (int half = 0; half < 2; ++half) {  // of the outputs
      const auto load = [&](int j) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + 64 * j + 32 * half)); };
      const auto floats = [&](int place) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(after + 2 * place + 16 * half)));
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

#elif defined(DOTS)

// Four outputs at a time: each of their registers has four inputs of each. Codes of 8 bits are taken as signed.
template <int BITS, int R>
inline void multiply_tile(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                          float (*out)[TILE]) {
  constexpr int QUARTERS = TILE / 4;
  float32x4_t sums[R][QUARTERS] = {};
  const uint8x16_t nibble = vdupq_n_u8(15), middle = vdupq_n_u8(128);
  for (int64_t block = 0; block < blocks; ++block, data += block_bytes(BITS)) {
    ahead.fetch(block_bytes(BITS));
    const uint8_t* after = data + TILE * BLOCK * BITS / 8;
    const int8_t* values = x.code.get() + row * x.inputs + BLOCK * block;
    for (int quarter = 0; quarter < QUARTERS; ++quarter) {
      const auto load = [&](int j) { return vld1q_u8(data + 64 * j + 16 * quarter); };
      const auto floats = [&](int place) {
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(after + 2 * place + 8 * quarter)));
      };
      const float32x4_t scale = floats(0);
      int8x16_t codes[8];
      if constexpr (BITS == 4) {
        for (int j = 0; j < 4; ++j) {
          const uint8x16_t pair = load(j);
          codes[j] = vreinterpretq_s8_u8(vandq_u8(pair, nibble));
          codes[j + 4] = vreinterpretq_s8_u8(vshrq_n_u8(pair, 4));
        }
      } else {
        for (int j = 0; j < 8; ++j) codes[j] = vreinterpretq_s8_u8(veorq_u8(load(j), middle));
      }
      for (int r = 0; r < R; ++r) {
        const int8x16_t first = vld1q_s8(values + r * x.inputs), second = vld1q_s8(values + r * x.inputs + 16);
        int32x4_t total = vdotq_laneq_s32(vdupq_n_s32(0), codes[0], first, 0);
        total = vdotq_laneq_s32(total, codes[1], first, 1);
        total = vdotq_laneq_s32(total, codes[2], first, 2);
        total = vdotq_laneq_s32(total, codes[3], first, 3);
        total = vdotq_laneq_s32(total, codes[4], second, 0);
        total = vdotq_laneq_s32(total, codes[5], second, 1);
        total = vdotq_laneq_s32(total, codes[6], second, 2);
        total = vdotq_laneq_s32(total, codes[7], second, 3);
        const int64_t at = (row + r) * (x.inputs / BLOCK) + block;
        sums[r][quarter] = vfmaq_f32(sums[r][quarter], vmulq_n_f32(scale, x.scale[at]), vcvtq_f32_s32(total));
        if constexpr (BITS == 4) sums[r][quarter] = vfmaq_n_f32(sums[r][quarter], floats(TILE), x.total[at]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int quarter = 0; quarter < QUARTERS; ++quarter) vst1q_f32(out[r] + 4 * quarter, sums[r][quarter]);
}

#else

template <int BITS, int R>
inline void multiply_tile(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                          float (*out)[TILE]) {
  for (int r = 0; r < R; ++r) std::fill_n(out[r], TILE, 0.f);
  for (int64_t block = 0; block < blocks; ++block, data += block_bytes(BITS)) {
    ahead.fetch(block_bytes(BITS));
    const uint8_t* after = data + TILE * BLOCK * BITS / 8;
    float scale[TILE], low[TILE];
    for (int i = 0; i < TILE; ++i) {
      scale[i] = scale_at(after + 2 * i);
      low[i] = BITS == 4 ? scale_at(after + 2 * TILE + 2 * i) : -128.f * scale[i];
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

}  // namespace
