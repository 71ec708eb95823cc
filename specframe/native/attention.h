// Attention of queries that read the same keys: one query in each place of a vector or, of a few queries, one key.
//
// A query's result has the same bits whatever queries stand beside it: places do not mix, keys come in one order, a key that
// a query does not see adds zero to it, and either way a product is added up number by number in the order of the head.

#pragma once

#include <vector>

#include "memory.h"

namespace {

constexpr int64_t KEYS = 8;         // whose products are added at once: one takes several cycles
constexpr int64_t AHEAD = 128;       // slots: how far ahead of what is computed memory is fetched
constexpr int SHARED = LANE == 16 ? 6 : 3, CHUNK = 4;  // queries that read a value once, and its lanes at a time

template <int WIDTH>
struct Floats {
  typedef float type __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
};

// What a group of queries sees: slots in ascending order, the first `common` of them all of the group, and of the others a
// row of factors, 0 or 1, for each. After the last slot the list goes on, so that AHEAD can be read from any place.
struct View {
  std::vector<int32_t> slots;
  std::vector<float> masks;  // [count - common, LANE]
  int64_t common = 0, count = 0;

  void add(int64_t slot) { slots.push_back(static_cast<int32_t>(slot)); }

  void add(int64_t slot, const float* mask) {
    add(slot);
    masks.insert(masks.end(), mask, mask + LANE);
  }

  void close() {
    count = static_cast<int64_t>(slots.size());
    common = count - static_cast<int64_t>(masks.size()) / LANE;
    slots.resize(count + AHEAD, count ? slots.back() : 0);
  }
};

// exp for x <= 0 within a few units in the last place (Cephes' polynomial).
template <typename Vector>
inline Vector exponential(Vector x) {
  x = x < -87.f ? Vector{} - 87.f : x;  // what is no number stays so
  const auto power = __builtin_convertvector(x * 1.44269504f - 0.5f, decltype(x > x));  // to the nearest: x is not above 0
  const Vector whole = __builtin_convertvector(power, Vector);
  const Vector rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vector series = Vector{} + 1.9875691500e-4f;
  for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    series = series * rest + next;
  series = series * rest * rest + rest + 1.f;
  const auto bits = (power + 127) << 23;
  Vector scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return series * scale;
}

// The shares [count, WIDTH] of each query's keys, not yet divided by their totals, which are returned in `total`.
template <int WIDTH, typename Memory>
void weigh(const float* const* query, int64_t queries, float scale, const Memory& memory, const View& view, float* shares,
           float* total) {
  using Vector = typename Floats<WIDTH>::type;
  const int64_t size = memory.size;
  alignas(64) float turned[HEAD * WIDTH];  // [size, WIDTH]
  alignas(64) float wide[Memory::WIDENS ? KEYS * HEAD : LANE];
  for (int64_t j = 0; j < size; ++j)
    for (int64_t q = 0; q < WIDTH; ++q) turned[j * WIDTH + q] = q < queries ? query[q][j] * scale : 0.f;
  const auto place = [](float* at, int64_t i) -> Vector& { return *reinterpret_cast<Vector*>(at + i * WIDTH); };
  Vector most = Vector{} - INFINITY;
  for (int64_t i = 0; i < view.count; i += KEYS) {
    Vector products[KEYS] = {};
    const float* key[KEYS];
    for (int64_t k = 0; k < KEYS; ++k) key[k] = memory.key(view.slots[i + k], wide + k * size);
    for (int64_t j = 0; j < size; ++j) {
      const Vector numbers = place(turned, j);
      for (int64_t k = 0; k < KEYS; ++k) products[k] += numbers * key[k][j];
    }
    for (int64_t k = 0; k < KEYS && i + k < view.count; ++k) {
      if (i + k >= view.common) {
        const Vector mask = *reinterpret_cast<const Vector*>(view.masks.data() + (i + k - view.common) * LANE);
        products[k] = mask != 0.f ? products[k] : Vector{} - INFINITY;
      }
      most = products[k] > most ? products[k] : most;
      place(shares, i + k) = products[k];
    }
  }
  Vector sum = {};
  for (int64_t i = 0; i < view.count; ++i) {
    Vector share = exponential(place(shares, i) - most);
    if (i >= view.common) share *= *reinterpret_cast<const Vector*>(view.masks.data() + (i - view.common) * LANE);
    sum += share;
    place(shares, i) = share;
  }
  place(total, 0) = sum;
}

// Adds up LANES lanes of the values, from `at` on, for COUNT queries from `first` on.
template <typename Memory, int COUNT, int LANES>
void gather(const Memory& memory, int64_t at, const View& view, const float* shares, int64_t width, int64_t first,
            const float* total, float* const* out) {
  Lane sums[COUNT][LANES] = {};
  for (int64_t i = 0; i < view.count; ++i) {
    Lane value[LANES];
    for (int j = 0; j < LANES; ++j) value[j] = memory.value(view.slots[i], at + LANE * j);
    for (int q = 0; q < COUNT; ++q)
      for (int j = 0; j < LANES; ++j) sums[q][j] += value[j] * shares[i * width + first + q];
  }
  for (int q = 0; q < COUNT; ++q)
    for (int j = 0; j < LANES; ++j)
      *reinterpret_cast<Lane*>(out[first + q] + at + LANE * j) = sums[q][j] / total[first + q];
}

template <typename Memory>
struct Gathers {
  using Gather = void (*)(const Memory&, int64_t, const View&, const float*, int64_t, int64_t, const float*, float* const*);
#define OF(COUNT) {gather<Memory, COUNT, 1>, gather<Memory, COUNT, 2>, gather<Memory, COUNT, 3>, gather<Memory, COUNT, 4>}
  static constexpr Gather OF_COUNT[][CHUNK] = {OF(1), OF(2), OF(3),
#ifdef __AVX512F__
                                               OF(4), OF(5), OF(6),
#endif
  };
#undef OF
};

#ifdef __AVX512F__

constexpr int64_t FEW = 4, TURNED = 2;  // queries whose keys are turned, and LANE keys at once so many times

// Four numbers of LANE keys, turned: `to[i]` has number i of each.
inline void turn(const float* const* key, int64_t at, Lane (&to)[4]) {
  __m512 quads[4];  // of keys r, r + 4, r + 8, r + 12
  for (int r = 0; r < 4; ++r) {
    const auto four = [&](int part) { return _mm_loadu_ps(key[r + 4 * part] + at); };
    quads[r] = _mm512_castps128_ps512(four(0));
    quads[r] = _mm512_mask_broadcast_f32x4(quads[r], 0x00f0, four(1));
    quads[r] = _mm512_mask_broadcast_f32x4(quads[r], 0x0f00, four(2));
    quads[r] = _mm512_mask_broadcast_f32x4(quads[r], 0xf000, four(3));
  }
  const auto pairs = [](__m512 a, __m512 b) { return _mm512_castps_pd(_mm512_unpacklo_ps(a, b)); };
  const auto others = [](__m512 a, __m512 b) { return _mm512_castps_pd(_mm512_unpackhi_ps(a, b)); };
  const __m512d a = pairs(quads[0], quads[1]), b = pairs(quads[2], quads[3]);
  const __m512d c = others(quads[0], quads[1]), d = others(quads[2], quads[3]);
  to[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
  to[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  to[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
  to[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
}

// The shares of COUNT queries' keys, [COUNT, line], not yet divided by their totals: a vector has a query's LANE keys.
template <int COUNT, typename Memory>
void weigh_few(const float* const* query, float scale, const Memory& memory, const View& view, float* shares, int64_t line) {
  const int64_t size = memory.size;
  alignas(64) float wide[Memory::WIDENS ? TURNED * LANE * HEAD : LANE];
  alignas(64) float numbers[HEAD][COUNT];
  for (int64_t j = 0; j < size; ++j)
    for (int q = 0; q < COUNT; ++q) numbers[j][q] = query[q][j] * scale;
  const auto place = [&](int q, int64_t i) -> Lane& { return *reinterpret_cast<Lane*>(shares + q * line + i); };
  for (int64_t i = 0; i < view.count; i += TURNED * LANE) {
    Lane products[COUNT][TURNED] = {};
    const int32_t* slots = view.slots.data() + i;
    const float* key[TURNED * LANE];
    for (int64_t k = 0; k < TURNED * LANE; ++k) key[k] = memory.key(slots[k], wide + k * size);
    for (int64_t j = 0; j < size; j += 4) {
      // Where keys follow each other, as they mostly do: from memory into the second-level cache, and from there into the
      // first, since a vector of LANE keys otherwise waits for more lines at once than a core can ask for.
      memory.template fetch<2>(slots[AHEAD - TURNED * LANE], TURNED * LANE * j, TURNED * LANE * 4);
      memory.template fetch<3>(slots[TURNED * LANE], TURNED * LANE * j, TURNED * LANE * 4);
      Lane turned[TURNED][4];
      for (int t = 0; t < TURNED; ++t) turn(key + t * LANE, j, turned[t]);
      for (int k = 0; k < 4; ++k)
        for (int q = 0; q < COUNT; ++q)
          for (int t = 0; t < TURNED; ++t) products[q][t] += numbers[j + k][q] * turned[t][k];
    }
    for (int q = 0; q < COUNT; ++q)
      for (int t = 0; t < TURNED; ++t) place(q, i + t * LANE) = products[q][t];
  }
  for (int q = 0; q < COUNT; ++q) {
    for (int64_t i = view.common; i < view.count; ++i)
      if (view.masks[(i - view.common) * LANE + q] == 0.f) shares[q * line + i] = -INFINITY;
    for (int64_t i = view.count; i % LANE; ++i) shares[q * line + i] = -INFINITY;
    Lane highest = Lane{} - INFINITY;
    for (int64_t i = 0; i < view.count; i += LANE) highest = place(q, i) > highest ? place(q, i) : highest;
    float most = highest[0];
    for (int i = 1; i < LANE; ++i) most = std::max(most, highest[i]);
    for (int64_t i = 0; i < view.count; i += LANE) place(q, i) = exponential(place(q, i) - most);
    for (int64_t i = view.common; i < view.count; ++i) shares[q * line + i] *= view.masks[(i - view.common) * LANE + q];
  }
}

// Adds up LANES lanes of the values, from `at` on, and the shares themselves, slot by slot.
template <typename Memory, int COUNT, int LANES>
void gather_few(const Memory& memory, int64_t at, const View& view, const float* shares, int64_t line, float* const* out) {
  Lane sums[COUNT][LANES] = {}, totals[COUNT] = {};
  for (int64_t i = 0; i < view.count; ++i) {
    Lane value[LANES];
    for (int j = 0; j < LANES; ++j) value[j] = memory.value(view.slots[i], at + LANE * j);
    memory.fetch_value(view.slots[i + AHEAD - 1], at, LANE * LANES);
    for (int q = 0; q < COUNT; ++q) {
      totals[q] += shares[q * line + i];
      for (int j = 0; j < LANES; ++j) sums[q][j] += value[j] * shares[q * line + i];
    }
  }
  for (int q = 0; q < COUNT; ++q)
    for (int j = 0; j < LANES; ++j) *reinterpret_cast<Lane*>(out[q] + at + LANE * j) = sums[q][j] / totals[q];
}

// The same as `attend` gives, bit for bit, for COUNT queries.
template <typename Memory, int COUNT>
void attend_few(const float* const* query, float* const* out, float scale, const Memory& memory, const View& view,
                float* shares) {
  const int64_t line = (view.count + TURNED * LANE - 1) / (TURNED * LANE) * (TURNED * LANE);
  weigh_few<COUNT>(query, scale, memory, view, shares, line);
  constexpr decltype(&gather_few<Memory, COUNT, 1>) GATHERS[] = {gather_few<Memory, COUNT, 1>, gather_few<Memory, COUNT, 2>,
                                                                 gather_few<Memory, COUNT, 3>, gather_few<Memory, COUNT, 4>};
  for (int64_t at = 0; at < memory.size; at += CHUNK * LANE)
    GATHERS[std::min<int64_t>(CHUNK, (memory.size - at) / LANE) - 1](memory, at, view, shares, line, out);
}

#endif

// Attention of up to LANE queries over one head's keys and values; `shares` has room for LANE numbers of every slot seen and
// of 2 LANE more.
template <typename Memory>
inline void attend(const float* const* query, float* const* out, int64_t queries, float scale, const Memory& memory,
                   const View& view, float* shares) {
#ifdef __AVX512F__
  constexpr decltype(&attend_few<Memory, 1>) ATTEND_FEW[] = {attend_few<Memory, 1>, attend_few<Memory, 2>,
                                                             attend_few<Memory, 3>, attend_few<Memory, 4>};
  if (queries <= FEW) return ATTEND_FEW[queries - 1](query, out, scale, memory, view, shares);
#endif
  alignas(64) float total[LANE];
  const int64_t width = queries <= 4 ? 4 : queries <= 8 ? 8 : LANE;
  (width == 4 ? weigh<4, Memory> : width == 8 ? weigh<8, Memory> : weigh<LANE, Memory>)(query, queries, scale, memory, view,
                                                                                        shares, total);
  const int64_t share = equal_share(queries, SHARED);
  for (int64_t first = 0; first < queries; first += share)
    for (int64_t at = 0; at < memory.size; at += CHUNK * LANE) {
      const int64_t lanes = std::min<int64_t>(CHUNK, (memory.size - at) / LANE);
      Gathers<Memory>::OF_COUNT[std::min(share, queries - first) - 1][lanes - 1](memory, at, view, shares, width, first,
                                                                                 total, out);
    }
}

}  // namespace
