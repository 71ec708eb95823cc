// Forward passes of Llama-like decoders over weights of 4, 8 or 16 bits, for processors.
//
// A weight stands in tiles of 16 outputs. With 16 bits a tile holds, for each pair of inputs, the bfloat16 of its 16
// outputs; activations are rounded to bfloat16. With fewer it holds, for each block of 32 inputs, the codes of its 16 outputs and
// behind them a scale for each output in half precision, with 4 bits also a lowest value:
// weight = scale * code + low, where codes of 8 bits are stored plus 128 and low is -128 * scale.
// Activations are rounded to 8 bits, with a scale for each row and block; products of codes are exact integers.
//
// Nothing here depends on how many rows are computed at once: a row's sums are added in one order, whatever its
// neighbours. A node of a tree so gets the very bits that it would get in a text decoded token by token.

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && !defined(PORTABLE)
#include <immintrin.h>
#define VNNI
#endif
#if defined(__AVX512BF16__) && !defined(PORTABLE)
#include <immintrin.h>
#define PAIRS
#endif
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__) && !defined(PORTABLE)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define AMX
#endif

namespace {

constexpr int64_t BLOCK = 32, TILE = 16, GROUP = 8, MANY = 16;  // inputs a block, outputs a tile, rows at once
constexpr int SPINS = 4000;                          // pauses of a waiting thread, some hundred microseconds

struct Weight {
  const uint8_t* data;
  const float* bias;  // or null
  int64_t outputs, inputs, bits;
};

struct Layer {
  const float *attention_norm, *mlp_norm, *query_norm, *key_norm;  // the last two may be null
  Weight qkv, output, gate_up, down;
};

struct Shape {
  int64_t layers, width, heads, kv_heads, head_size, rotary, mlp;
  float epsilon, scale;
};

// A node sees the slots below its row's `length` and, from `base` on, the nodes that `sees` has; or, without `sees`, the
// slots that `visible` has, and its own keys and values go to its place.
struct Batch {
  int64_t rows, nodes;         // B, N: B * N rows of `hidden`
  int64_t first, width;        // the cache's row of the first, and the first slot that no node sees
  int64_t cache_rows, slots;   // the cache is [2 * layers, cache_rows, kv_heads, slots, head_size]
  int64_t base;                // the slot of the first node
  const uint8_t* sees;         // [B, N, N], or null
  const int64_t* length;       // [B], slots that are committed
  const uint8_t* visible;      // [B, N, width]
  const int64_t* places;       // [B, N]
  const float *cosine, *sine;  // [B * N, rotary / 2]
};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Where the threads of a team wait for each other. They soon yield: on a busy machine, a thread that spins may hold the very
// core that the others need.
struct Barrier {
  std::atomic<int> arrived{0}, passed{0};

  void wait(int threads) {
    const int before = passed.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived.store(0, std::memory_order_relaxed);
      passed.store(before + 1, std::memory_order_release);
      return;
    }
    for (int tries = 0; passed.load(std::memory_order_acquire) == before; ++tries) {
      if (tries > SPINS) sched_yield();
      else pause();
    }
  }
};

// One thread of a team.
struct Worker {
  int id, threads;
  Barrier& barrier;

  explicit Worker(Barrier& shared) : id(omp_get_thread_num()), threads(omp_get_num_threads()), barrier(shared) {}

  // Calls `work` with this thread's share of the items 0 .. count - 1, one by one; then waits for the others.
  template <typename Work>
  void share(int64_t count, Work work) const {
    for (int64_t item = count * id / threads; item < count * (id + 1) / threads; ++item) work(item);
    if (threads > 1) barrier.wait(threads);
  }
};

constexpr int64_t block_bytes(int64_t bits) { return TILE * BLOCK * bits / 8 + TILE * (bits == 4 ? 4 : bits == 8 ? 2 : 0); }

typedef float Lane __attribute__((vector_size(64), aligned(4), may_alias));  // 16 floats, wherever they stand

typedef uint32_t Words __attribute__((vector_size(64)));

inline Lane lane(Words words) {
  Lane floats;
  std::memcpy(&floats, &words, sizeof(floats));
  return floats;
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

// Rows rounded to 8 bits; or to bfloat16, for weights of 16.
struct Codes {
  int64_t inputs;
  bool halves;
  std::unique_ptr<uint16_t[]> half;       // [M, inputs]
  std::unique_ptr<int8_t[]> code;         // [M, inputs]
  std::unique_ptr<float[]> scale, total;  // [M, blocks]: of the codes, and scale times their sum

  Codes(int64_t rows, int64_t most, int64_t bits) : inputs(most), halves(bits == 16) {
    if (halves) {
      half.reset(new uint16_t[rows * most]);
      return;
    }
    code.reset(new int8_t[rows * most]);
    scale.reset(new float[rows * most / BLOCK]);
    total.reset(new float[rows * most / BLOCK]);
  }

  void set(int64_t row, const float* values, int64_t count) {
    if (halves) {
      for (int64_t i = 0; i < count; ++i) half[row * inputs + i] = narrow(values[i]);
      return;
    }
    int8_t* to = code.get() + row * inputs;
    for (int64_t block = 0; block < count / BLOCK; ++block, values += BLOCK, to += BLOCK) {
      float most = 0;
      for (int i = 0; i < BLOCK; ++i) most = std::max(most, std::fabs(values[i]));
      const float inverse = most > 0 ? 127.f / most : 0.f;
      int32_t sum = 0;
      for (int i = 0; i < BLOCK; ++i) {
        const int32_t rounded = static_cast<int32_t>(std::nearbyintf(values[i] * inverse));
        to[i] = static_cast<int8_t>(rounded);
        sum += rounded;
      }
      const int64_t at = row * (inputs / BLOCK) + block;
      scale[at] = most / 127.f;
      total[at] = scale[at] * static_cast<float>(sum);
    }
  }
};

#ifdef VNNI

template <int BITS, int R>
inline void multiply_tile(const uint8_t* data, int64_t blocks, const Codes& x, int64_t row, float (*out)[TILE]) {
  __m512 sums[R];
  for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_ps();
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int64_t block = 0; block < blocks; ++block, data += block_bytes(BITS)) {
    __m512i codes[8];
    __m512 low;
    const uint8_t* behind = data + TILE * BLOCK * BITS / 8;
    const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(behind)));
    if constexpr (BITS == 4) {
      for (int j = 0; j < 4; ++j) {
        const __m512i pair = _mm512_loadu_si512(data + 64 * j);
        codes[j] = _mm512_and_si512(pair, nibble);
        codes[j + 4] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), nibble);
      }
      low = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(behind + 2 * TILE)));
    } else {
      for (int j = 0; j < 8; ++j) codes[j] = _mm512_loadu_si512(data + 64 * j);
      low = _mm512_mul_ps(scale, _mm512_set1_ps(-128.f));
    }
    for (int r = 0; r < R; ++r) {
      int32_t quads[8];  // four inputs each
      std::memcpy(quads, x.code.get() + (row + r) * x.inputs + BLOCK * block, BLOCK);
      __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
      for (int j = 0; j < 8; j += 2) {
        even = _mm512_dpbusd_epi32(even, codes[j], _mm512_set1_epi32(quads[j]));
        odd = _mm512_dpbusd_epi32(odd, codes[j + 1], _mm512_set1_epi32(quads[j + 1]));
      }
      const int64_t at = (row + r) * (x.inputs / BLOCK) + block;
      const __m512 product = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      sums[r] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(x.scale[at])), product, sums[r]);
      sums[r] = _mm512_fmadd_ps(low, _mm512_set1_ps(x.total[at]), sums[r]);
    }
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(out[r], sums[r]);
}

#else

inline float half(const uint8_t* at) {
  _Float16 value;
  std::memcpy(&value, at, 2);
  return static_cast<float>(value);
}

template <int BITS, int R>
inline void multiply_tile(const uint8_t* data, int64_t blocks, const Codes& x, int64_t row, float (*out)[TILE]) {
  for (int r = 0; r < R; ++r) std::fill_n(out[r], TILE, 0.f);
  for (int64_t block = 0; block < blocks; ++block, data += block_bytes(BITS)) {
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

// R rows' products with a tile of bfloat16: 16 pairs of inputs a block, of 16 outputs each.
template <int R>
inline void multiply_tile_halves(const uint8_t* data, int64_t blocks, const Codes& x, int64_t row, float (*out)[TILE]) {
  const uint16_t* values = x.half.get() + row * x.inputs;
#ifdef PAIRS
  __m512 first[R] = {}, second[R] = {};  // two sums a row: a product takes several cycles
  for (int64_t k = 0; k < blocks * BLOCK; k += 4, data += 8 * TILE) {
    const __m512bh a = (__m512bh)_mm512_loadu_si512(data), b = (__m512bh)_mm512_loadu_si512(data + 4 * TILE);
    for (int r = 0; r < R; ++r) {
      int32_t pairs[2];
      std::memcpy(pairs, values + r * x.inputs + k, sizeof(pairs));
      first[r] = _mm512_dpbf16_ps(first[r], a, (__m512bh)_mm512_set1_epi32(pairs[0]));
      second[r] = _mm512_dpbf16_ps(second[r], b, (__m512bh)_mm512_set1_epi32(pairs[1]));
    }
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(out[r], _mm512_add_ps(first[r], second[r]));
#else
  Lane even[R] = {}, odd[R] = {};
  for (int64_t k = 0; k < blocks * BLOCK; k += 2, data += 4 * TILE) {
    Words pairs;
    std::memcpy(&pairs, data, sizeof(pairs));
    const Lane a = lane(pairs << 16), b = lane(pairs & 0xffff0000u);
    for (int r = 0; r < R; ++r) {
      even[r] += a * widen(values[r * x.inputs + k]);
      odd[r] += b * widen(values[r * x.inputs + k + 1]);
    }
  }
  for (int r = 0; r < R; ++r) *reinterpret_cast<Lane*>(out[r]) = even[r] + odd[r];
#endif
}

#ifdef PAIRS
using Halves = void (*)(const uint8_t*, int64_t, const Codes&, int64_t, float (*)[TILE]);
constexpr Halves HALVES[] = {multiply_tile_halves<1>, multiply_tile_halves<2>, multiply_tile_halves<3>,
                             multiply_tile_halves<4>, multiply_tile_halves<5>, multiply_tile_halves<6>,
                             multiply_tile_halves<7>, multiply_tile_halves<8>, multiply_tile_halves<9>,
                             multiply_tile_halves<10>, multiply_tile_halves<11>, multiply_tile_halves<12>};
#endif

// The same of up to MANY rows; with AMX the tiles are configured for so many.
inline void multiply_halves(const uint8_t* data, int64_t blocks, const Codes& x, int64_t row, int64_t rows, bool tiles,
                            float (*out)[TILE]) {
#ifdef AMX
  if (tiles) {
    const uint16_t* values = x.half.get() + row * x.inputs;
    _tile_zero(0);
    for (int64_t block = 0; block < blocks; ++block) {
      _tile_loadd(1, values + BLOCK * block, 2 * x.inputs);
      _tile_loadd(2, data + block_bytes(16) * block, 4 * TILE);
      _tile_dpbf16ps(0, 1, 2);
    }
    _tile_stored(0, out, 4 * TILE);
    return;
  }
#endif
#ifdef PAIRS
  // As many rows as there are registers for their sums read a weight once.
  const int64_t most = rows <= 12 ? rows : (rows + 1) / 2;
  for (int64_t r = 0; r < rows; r += most) HALVES[std::min(most, rows - r) - 1](data, blocks, x, row + r, out + r);
#else
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) multiply_tile_halves<4>(data, blocks, x, row + r, out + r);
  for (; r < rows; ++r) multiply_tile_halves<1>(data, blocks, x, row + r, out + r);
#endif
}

template <int BITS>
inline void multiply_rows(const uint8_t* data, int64_t blocks, const Codes& x, int64_t row, int64_t rows, float (*out)[TILE]) {
  switch (rows) {
    case 1: return multiply_tile<BITS, 1>(data, blocks, x, row, out);
    case 2: return multiply_tile<BITS, 2>(data, blocks, x, row, out);
    case 3: return multiply_tile<BITS, 3>(data, blocks, x, row, out);
    case 4: return multiply_tile<BITS, 4>(data, blocks, x, row, out);
    case 5: return multiply_tile<BITS, 5>(data, blocks, x, row, out);
    case 6: return multiply_tile<BITS, 6>(data, blocks, x, row, out);
    case 7: return multiply_tile<BITS, 7>(data, blocks, x, row, out);
    default: return multiply_tile<BITS, 8>(data, blocks, x, row, out);
  }
}

// out [M, stride] = x W^T + bias, or that added to it; to be called by all threads of a team.
void multiply(const Worker& worker, const Weight& w, const Codes& x, int64_t rows, float* out, int64_t stride, bool add) {
  const int64_t tiles = (w.outputs + TILE - 1) / TILE, blocks = w.inputs / BLOCK, group = w.bits == 16 ? MANY : GROUP;
#ifdef AMX
  const bool registers = w.bits == 16 && has_tiles();
#else
  const bool registers = false;
#endif
  int64_t configured = 0;
  worker.share(tiles, [&](int64_t tile) {
    const uint8_t* data = w.data + tile * blocks * block_bytes(w.bits);
    const int64_t start = tile * TILE, width = std::min(TILE, w.outputs - start);
    for (int64_t row = 0; row < rows; row += group) {
      const int64_t count = std::min(group, rows - row);
      alignas(64) float found[MANY][TILE];
#ifdef AMX
      if (registers && count != configured) configure(configured = count);
#endif
      if (w.bits == 16) multiply_halves(data, blocks, x, row, count, registers, found);
      else if (w.bits == 4) multiply_rows<4>(data, blocks, x, row, count, found);
      else multiply_rows<8>(data, blocks, x, row, count, found);
      for (int64_t r = 0; r < count; ++r) {
        float* to = out + (row + r) * stride + start;
        for (int64_t i = 0; i < width; ++i) {
          const float value = w.bias ? found[r][i] + w.bias[start + i] : found[r][i];
          to[i] = add ? to[i] + value : value;
        }
      }
    }
  });
#ifdef AMX
  if (configured) _tile_release();
#endif
}

// exp for x <= 0 within a few units in the last place (Cephes' polynomial); loops over it become vector code.
inline float exponential(float x) {
  x = std::max(x, -87.f);
  const float power = std::floor(x * 1.44269504f + 0.5f);
  const float rest = (x - power * 0.693359375f) + power * 2.12194440e-4f;
  float series = 1.9875691500e-4f;
  for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    series = series * rest + next;
  series = series * rest * rest + rest + 1.f;
  const int32_t bits = (static_cast<int32_t>(power) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return series * scale;
}

// Without a weight nothing is normalized.
inline void normalize(const float* from, const float* weight, float epsilon, int64_t width, float* to) {
  if (!weight) {
    std::memcpy(to, from, width * sizeof(float));
    return;
  }
  float squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += from[i] * from[i];
  const float factor = 1.f / std::sqrt(squares / width + epsilon);
  for (int64_t i = 0; i < width; ++i) to[i] = from[i] * factor * weight[i];
}

inline void rotate(float* head, const float* cosine, const float* sine, int64_t rotary) {
  const int64_t half = rotary / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosine[i] - b * sine[i];
    head[half + i] = b * cosine[i] + a * sine[i];
  }
}

inline float sum(Lane lane) {
  typedef float Half __attribute__((vector_size(32)));
  typedef float Quarter __attribute__((vector_size(16)));
  Half a, b;
  std::memcpy(&a, &lane, 32);
  std::memcpy(&b, reinterpret_cast<const char*>(&lane) + 32, 32);
  a += b;
  Quarter c, d;
  std::memcpy(&c, &a, 16);
  std::memcpy(&d, reinterpret_cast<const char*>(&a) + 16, 16);
  c += d;
  return (c[0] + c[2]) + (c[1] + c[3]);
}

// One head's attention of one node, over the slots `seen`; heads have LANES * 16 numbers.
template <int LANES>
void attend(const float* query, const float* keys, const float* values, const int32_t* seen, int64_t count, float scale,
            float* shares, float* out) {
  Lane q[LANES], sums[LANES] = {};
  for (int j = 0; j < LANES; ++j) q[j] = *reinterpret_cast<const Lane*>(query + 16 * j) * scale;
  for (int64_t i = 0; i < count; ++i) {
    const Lane* key = reinterpret_cast<const Lane*>(keys + static_cast<int64_t>(seen[i]) * 16 * LANES);
    Lane product = q[0] * key[0];
    for (int j = 1; j < LANES; ++j) product += q[j] * key[j];
    shares[i] = sum(product);
  }
  float most = -INFINITY, total = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, shares[i]);
  for (int64_t i = 0; i < count; ++i) shares[i] = exponential(shares[i] - most);
  for (int64_t i = 0; i < count; ++i) total += shares[i];
  for (int64_t i = 0; i < count; ++i) {
    const Lane* value = reinterpret_cast<const Lane*>(values + static_cast<int64_t>(seen[i]) * 16 * LANES);
    for (int j = 0; j < LANES; ++j) sums[j] += shares[i] * value[j];
  }
  for (int j = 0; j < LANES; ++j) *reinterpret_cast<Lane*>(out + 16 * j) = sums[j] / total;
}

using Attend = void (*)(const float*, const float*, const float*, const int32_t*, int64_t, float, float*, float*);
constexpr Attend ATTEND[] = {attend<1>, attend<2>, attend<3>, attend<4>, attend<5>, attend<6>, attend<7>, attend<8>,
                             attend<9>, attend<10>, attend<11>, attend<12>, attend<13>, attend<14>, attend<15>, attend<16>};

}  // namespace

// out [M, outputs] = x [M, inputs] W^T + bias.
extern "C" void specframe_multiply(const Weight* w, const float* x, int64_t rows, float* out) {
  Codes codes(rows, w->inputs, w->bits);
  Barrier barrier;
#pragma omp parallel
  {
    const Worker worker(barrier);
    worker.share(rows, [&](int64_t row) { codes.set(row, x + row * w->inputs, w->inputs); });
    multiply(worker, *w, codes, rows, out, w->outputs, false);
  }
}

// Runs the layers over `hidden` [M, width], in place and without the final norm, and writes keys and values into the
// cache. `taps` [layers] are where a layer's output is copied to, [M, width] each, or null. `runs` [layers] says what of
// a layer runs, its attention (1), its MLP (2), or both; null: all of all.
extern "C" void specframe_decode(const Shape* shape, const Layer* layers, const Batch* batch, float* cache, float* hidden,
                                 float* const* taps, const uint8_t* runs) {
  const Shape s = *shape;
  const Batch b = *batch;
  const int64_t rows = b.rows * b.nodes, queries = s.heads * s.head_size, keys = s.kv_heads * s.head_size;
  const int64_t line = queries + 2 * keys, most = b.width, wide = std::max({s.width, queries, s.mlp});
  const int64_t head_stride = b.slots * s.head_size, plane = b.cache_rows * s.kv_heads * head_stride;
  Codes codes(rows, wide, layers[0].qkv.bits);
  std::unique_ptr<float[]> qkv(new float[rows * line]), attended(new float[rows * queries]), mlp(new float[rows * 2 * s.mlp]);
  std::unique_ptr<int32_t[]> seen(new int32_t[rows * most]);
  std::unique_ptr<int64_t[]> counts(new int64_t[rows]);
  Barrier barrier;
#pragma omp parallel
  {
    const Worker worker(barrier);
    std::unique_ptr<float[]> shares(new float[most]), values(new float[wide]);
    worker.share(rows, [&](int64_t row) {
      int32_t* to = seen.get() + row * most;
      int64_t count = 0;
      if (b.sees) {
        const int64_t length = b.length[row / b.nodes], node = row % b.nodes;
        for (; count < length; ++count) to[count] = static_cast<int32_t>(count);
        for (int64_t j = 0; j <= node; ++j)
          if (b.sees[row * b.nodes + j]) to[count++] = static_cast<int32_t>(b.base + j);
      } else {
        for (int64_t slot = 0; slot < most; ++slot)
          if (b.visible[row * most + slot]) to[count++] = static_cast<int32_t>(slot);
      }
      counts[row] = count;
    });
    for (int64_t l = 0; l < s.layers; ++l) {
      const Layer& layer = layers[l];
      float *key_plane = cache + 2 * l * plane, *value_plane = key_plane + plane;
      if (!runs || runs[l] & 1) {
        worker.share(rows, [&](int64_t row) {
          normalize(hidden + row * s.width, layer.attention_norm, s.epsilon, s.width, values.get());
          codes.set(row, values.get(), s.width);
        });
        multiply(worker, layer.qkv, codes, rows, qkv.get(), line, false);
        worker.share(rows, [&](int64_t row) {
          float* at = qkv.get() + row * line;
          const int64_t first = b.first + row / b.nodes, slot = b.sees ? b.base + row % b.nodes : b.places[row];
          for (int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
            float* head = at + h * s.head_size;
            const float* norm = h < s.heads ? layer.query_norm : layer.key_norm;
            if (norm) normalize(head, norm, s.epsilon, s.head_size, head);
            rotate(head, b.cosine + row * (s.rotary / 2), b.sine + row * (s.rotary / 2), s.rotary);
          }
          for (int64_t h = 0; h < s.kv_heads; ++h) {
            const int64_t place = (first * s.kv_heads + h) * head_stride + slot * s.head_size;
            std::memcpy(key_plane + place, at + queries + h * s.head_size, s.head_size * sizeof(float));
            std::memcpy(value_plane + place, at + queries + keys + h * s.head_size, s.head_size * sizeof(float));
          }
        });
        worker.share(rows * s.heads, [&](int64_t item) {
          const int64_t row = item % rows, h = item / rows;
          const int64_t place = ((b.first + row / b.nodes) * s.kv_heads + h * s.kv_heads / s.heads) * head_stride;
          ATTEND[s.head_size / 16 - 1](qkv.get() + row * line + h * s.head_size, key_plane + place, value_plane + place,
                                       seen.get() + row * most, counts[row], s.scale, shares.get(),
                                       attended.get() + row * queries + h * s.head_size);
        });
        worker.share(rows, [&](int64_t row) {
          codes.set(row, attended.get() + row * queries, queries);
        });
        multiply(worker, layer.output, codes, rows, hidden, s.width, true);
      }
      if (!runs || runs[l] & 2) {
        worker.share(rows, [&](int64_t row) {
          normalize(hidden + row * s.width, layer.mlp_norm, s.epsilon, s.width, values.get());
          codes.set(row, values.get(), s.width);
        });
        multiply(worker, layer.gate_up, codes, rows, mlp.get(), 2 * s.mlp, false);
        worker.share(rows, [&](int64_t row) {
          const float *gate = mlp.get() + row * 2 * s.mlp, *up = gate + s.mlp;
          for (int64_t i = 0; i < s.mlp; ++i) {
            const float small = exponential(-std::fabs(gate[i]));  // silu(x) = x / (1 + exp(-x))
            values[i] = gate[i] * up[i] * (gate[i] >= 0 ? 1.f : small) / (1.f + small);
          }
          codes.set(row, values.get(), s.mlp);
        });
        multiply(worker, layer.down, codes, rows, hidden, s.width, true);
      }
      if (taps[l]) {
        worker.share(rows, [&](int64_t row) {
          std::memcpy(taps[l] + row * s.width, hidden + row * s.width, s.width * sizeof(float));
        });
      }
    }
  }
}
