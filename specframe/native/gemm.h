// Products of rows with a tile of weights of 4, 8, 16 or 32 bits, by the instructions that the processor has.
//
// A weight stands in tiles of 16 outputs. With 32 bits a tile holds, for each input, the floats of its 16 outputs; with
// 16, for each pair of inputs, the bfloat16 of them, and activations are rounded to bfloat16. With fewer it holds, for each
// block of 32 inputs, the codes of its 16 outputs and after them a scale for each output in half precision, with 4 bits also a lowest value:
// weight = scale * code + low, where codes of 8 bits are stored plus 128 and low is -128 * scale.
// Activations are rounded to 8 bits, with a scale for each row and block; products of codes are exact integers.
//
// A row's sums are added in one order, however many rows there are.
//
// Every product also takes weights that will be read next and are fetched meanwhile: the processor itself looks hardly
// further than a page, and with more rows it would compute and wait for memory in turns.

#pragma once

#include "gemm_int8.h"
#include "numbers.h"

namespace {

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

#elif defined(HALF_DOTS)

constexpr int64_t TOGETHER = 6;

// R rows' products with a tile of bfloat16: four outputs a register, a pair of inputs of each.
template <int R>
inline void multiply_tile_halves(const uint8_t* data, Ahead ahead, int64_t blocks, const Codes& x, int64_t row,
                                 float (*out)[TILE]) {
  const Half* values = x.half.get() + row * x.inputs;
  float32x4_t sums[R][PARTS] = {};
  for (int64_t k = 0; k < blocks * BLOCK; k += 2, data += 4 * TILE) {
    ahead.fetch(4 * TILE);
    for (int part = 0; part < PARTS; ++part) {
      const bfloat16x8_t weights = vreinterpretq_bf16_u8(vld1q_u8(data + 16 * part));
      for (int r = 0; r < R; ++r) {
        const int32x4_t pair = vdupq_n_s32(*reinterpret_cast<const Word*>(values + r * x.inputs + k));
        sums[r][part] = vbfdotq_f32(sums[r][part], weights, vreinterpretq_bf16_s32(pair));
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int part = 0; part < PARTS; ++part) vst1q_f32(out[r] + 4 * part, sums[r][part]);
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
