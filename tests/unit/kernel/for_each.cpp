// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/for_each.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "belay/core/dtype.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/optimizer.hpp"

using namespace belay::kernel;

namespace {

// Counts how often an index was done and asked for, and notes which lines were asked for too late.
struct watched {
  std::vector<int>* done;
  std::vector<int>* asked;
  int* late;

  void operator()(std::size_t i) const { ++(*done)[i]; }
  static constexpr std::size_t indices_of_line = 8;
  void prefetch(std::size_t i) const {
    for (std::size_t j = i; j < i + indices_of_line && j < asked->size(); ++j) {
      ++(*asked)[j];
      if ((*done)[j] > 0) ++*late;
    }
  }
};
static_assert(prefetching<watched>);

}  // namespace

TEST_CASE("each index is done once, and what is far enough is asked for once before") {
  for (std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{9}, std::size_t{1000}}) {
    CAPTURE(count);
    std::vector<int> done(count), asked(count);
    int late = 0;
    for_each_index(count, watched{&done, &asked, &late});
    CHECK(done == std::vector<int>(count, 1));
    CHECK(late == 0);
    constexpr std::size_t ahead = lines_ahead * watched::indices_of_line;
    for (std::size_t i = 0; i < count; ++i) CHECK(asked[i] == (i < ahead ? 0 : 1));
  }
}

TEST_CASE("memory beyond an array may be asked for") {
  const float last = 1;
  prefetch(&last, 1 << 20);
  CHECK(last == 1);
}

namespace {

using namespace belay;
using namespace belay::kernel;

struct arrays {
  static constexpr std::size_t count = 48;
  alignas(16) float a[count];
  alignas(16) float b[count];
  alignas(16) float c[count];
  alignas(16) float d[count];
  alignas(16) bf16 narrow[count];
  alignas(16) fp8_e4m3 narrower[count];

  arrays() {
    for (std::size_t i = 0; i < count; ++i) {
      a[i] = 0.25F * static_cast<float>(i % 13) - 1;
      b[i] = 0.5F * static_cast<float>(i % 7) - 1;
      c[i] = 0.125F * static_cast<float>(i % 5);
      d[i] = 0.0625F * static_cast<float>(i % 11);
      narrow[i] = static_cast<bf16>(a[i]);
      narrower[i] = static_cast<fp8_e4m3>(0.0F);
    }
  }
};

// Whether packs give the bits of single indices, and where the arrays begin within one are not taken.
template <class Make>
bool same_by_packs(const Make& make) {
  arrays one, many;
  const auto single = make(one, 0), by_pack = make(many, 0);
  constexpr std::size_t size = decltype(by_pack)::indices_of_pack;
  static_assert(packed<decltype(by_pack)> && arrays::count % size == 0);
  for_each_index(arrays::count, single);
  for (std::size_t i = 0; i < arrays::count; i += size) by_pack.pack(i);
  return by_pack.packs() && !make(one, 1).packs() && std::memcmp(&one, &many, sizeof one) == 0;
}

}  // namespace

TEST_CASE("a pack has the bits of its indices, whatever the types") {
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return fill<float>{x.a + i, 3}; }));
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return kernel::copy<float>{x.a + i, x.b}; }));
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return kernel::copy<float, bf16>{x.a, x.narrow + i}; }));
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return kernel::copy<bf16, float>{x.narrow + i, x.a}; }));
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return kernel::copy<float, fp8_e4m3>{x.a + i, x.narrower}; }));
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return add<bf16, float>{x.a + i, x.narrow, x.narrow}; }));
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return axpy<float>{0.5F, x.a, x.b + i}; }));
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return axpy<float, bf16>{0.5F, x.narrow + i, x.b}; }));
  CHECK(same_by_packs([](arrays& x, std::size_t i) { return kernel::scale<float>{0.3F, x.a + i}; }));
  const auto scalars = adamw_at_step<float>({}, 3);
  CHECK(same_by_packs([&](arrays& x, std::size_t i) { return adamw<float>{x.a, x.b + i, x.c, x.d, scalars}; }));
  CHECK(same_by_packs([&](arrays& x, std::size_t i) {
    return adamw_of_master<float, bf16>{x.narrow, {x.a + i, x.b, x.c, x.d, scalars}};
  }));
  static_assert(pack_size<float> == 4 && pack_size<float, bf16> == 8 && pack_size<double> == 2);
  static_assert(!packed<multiply<float>>);
}
