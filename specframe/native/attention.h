// Attention of queries that read the same keys, one query in each place of a vector.
//
// A query's result has the same bits whatever queries stand beside it: places do not mix, keys come in one order, and a key
// that a query does not see adds zero to it.

#pragma once

#include <vector>

#include "gemm.h"

namespace {

constexpr int64_t KEYS = 8;         // whose products are added at once: one takes several cycles
constexpr int64_t HEAD = 256;       // the largest head
constexpr int SHARED = LANE == 16 ? 6 : 3, CHUNK = 4;  // queries that read a value once, and its lanes at a time

template <int WIDTH>
struct Floats {
  typedef float type __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
};

// What a group of queries sees: slots in ascending order, the first `common` of them all of the group, and of the others a
// row of factors, 0 or 1, for each. Behind the last slot the list goes on, so that KEYS can be read from any place.
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
    slots.resize(count + KEYS, count ? slots.back() : 0);
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
template <int WIDTH>
void weigh(const float* const* query, int64_t queries, int64_t size, float scale, const float* keys, const View& view,
           float* shares, float* total) {
  using Vector = typename Floats<WIDTH>::type;
  alignas(64) float turned[HEAD * WIDTH];  // [size, WIDTH]
  for (int64_t j = 0; j < size; ++j)
    for (int64_t q = 0; q < WIDTH; ++q) turned[j * WIDTH + q] = q < queries ? query[q][j] * scale : 0.f;
  const auto place = [](float* at, int64_t i) -> Vector& { return *reinterpret_cast<Vector*>(at + i * WIDTH); };
  Vector most = Vector{} - INFINITY;
  for (int64_t i = 0; i < view.count; i += KEYS) {
    Vector products[KEYS] = {};
    const float* key[KEYS];
    for (int64_t k = 0; k < KEYS; ++k) key[k] = keys + view.slots[i + k] * size;
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
template <int COUNT, int LANES>
void gather(const float* values, int64_t size, int64_t at, const View& view, const float* shares, int64_t width,
            int64_t first, const float* total, float* const* out) {
  Lane sums[COUNT][LANES] = {};
  for (int64_t i = 0; i < view.count; ++i) {
    const Lane* value = reinterpret_cast<const Lane*>(values + view.slots[i] * size + at);
    for (int q = 0; q < COUNT; ++q)
      for (int j = 0; j < LANES; ++j) sums[q][j] += value[j] * shares[i * width + first + q];
  }
  for (int q = 0; q < COUNT; ++q)
    for (int j = 0; j < LANES; ++j)
      *reinterpret_cast<Lane*>(out[first + q] + at + LANE * j) = sums[q][j] / total[first + q];
}

using Gather = void (*)(const float*, int64_t, int64_t, const View&, const float*, int64_t, int64_t, const float*, float* const*);
#define OF(COUNT) {gather<COUNT, 1>, gather<COUNT, 2>, gather<COUNT, 3>, gather<COUNT, 4>}
constexpr Gather GATHER[][CHUNK] = {OF(1), OF(2), OF(3),
#ifdef __AVX512F__
                                    OF(4), OF(5), OF(6),
#endif
};
#undef OF

// Attention of up to LANE queries over one head's keys and values [slots, size]; size is a multiple of 16, HEAD at most.
// `shares` has room for LANE numbers of every slot seen.
inline void attend(const float* const* query, float* const* out, int64_t queries, int64_t size, float scale, const float* keys,
                   const float* values, const View& view, float* shares) {
  alignas(64) float total[LANE];
  const int64_t width = queries <= 4 ? 4 : queries <= 8 ? 8 : LANE;
  (width == 4 ? weigh<4> : width == 8 ? weigh<8> : weigh<LANE>)(query, queries, size, scale, keys, view, shares, total);
  const int64_t share = equal_share(queries, SHARED);
  for (int64_t first = 0; first < queries; first += share)
    for (int64_t at = 0; at < size; at += CHUNK * LANE) {
      const int64_t lanes = std::min<int64_t>(CHUNK, (size - at) / LANE);
      GATHER[std::min(share, queries - first) - 1][lanes - 1](values, size, at, view, shares, width, first, total, out);
    }
}

}  // namespace
