// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What gradients are on the wire: of bf16 parameters half the bytes, each rounded once, and added in float.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/bucket.hpp"

namespace {

using belay::bf16;

// Counts the bytes that leave a rank, whose calls move nothing.
struct counted_calls {
  int own = 0;
  int ranks = 1;
  std::size_t* bytes;

  [[nodiscard]] int rank() const { return own; }
  [[nodiscard]] int size() const { return ranks; }
  template <class T>
  void count_foreign(std::span<const std::size_t> counts) const {
    for (std::size_t r = 0; r < counts.size(); ++r)
      if (static_cast<int>(r) != own) *bytes += counts[r] * sizeof(T);
  }
  template <class T, class Op>
  void reduce_scatter_v(std::span<T>, std::span<const std::size_t> counts, Op, belay::where) const {
    count_foreign<T>(counts);
  }
  template <class T, class Op>
  void all_reduce(std::span<T> inout, Op, belay::where) const {
    const auto others = static_cast<std::size_t>(ranks) - 1;
    *bytes += 2 * others * (inout.size() / static_cast<std::size_t>(ranks)) * sizeof(T);
  }
  template <class T>
  void all_to_all_v(std::span<const T>, std::span<const std::size_t> counts, std::span<T>, std::span<const std::size_t>,
                    belay::where) const {
    count_foreign<T>(counts);
  }
  template <class T>
  void all_gather_v(std::span<T>, std::span<const std::size_t> counts, belay::where) const {
    *bytes += (static_cast<std::size_t>(ranks) - 1) * counts[static_cast<std::size_t>(own)] * sizeof(T);
  }
};

// A group as a layout sees it.
struct replica_group {
  int own = 0;
  int ranks = 1;
  belay::zero_stage stage = belay::zero_stage::optimizer_state;
  struct group_type {
    int own, ranks;
    [[nodiscard]] int rank() const { return own; }
    [[nodiscard]] int size() const { return ranks; }
  } group{own, ranks};
  operator belay::replica_group_shape() const { return {static_cast<std::size_t>(ranks), stage}; }
};

template <class T>
std::size_t bytes_sent(const std::vector<std::size_t>& sizes, int rank, int ranks, belay::zero_stage stage) {
  std::vector<belay::bucket_entry> entries;
  for (std::size_t size : sizes) entries.push_back({size, 0, 0});
  const std::vector<replica_group> replica_groups{{rank, ranks, stage}};
  using number = belay::compute_type_t<T>;
  belay::bucket_reductions<T> kept(entries, replica_groups, sizeof(number), std::size_t{1} << 16);
  std::vector<T> values(kept.layout.elements()), wire(kept.wire.elements());
  std::vector<number> gradients(kept.layout.gradient_elements());
  const auto all = std::span(gradients);
  const belay::bucket_memory<T> memory{std::span(values), all.first(kept.layout.elements()), all.subspan(kept.layout.elements()),
                                       wire, belay::bucket_places(kept.layout, std::vector<std::size_t>{static_cast<std::size_t>(rank)})};
  std::size_t bytes = 0;
  for (std::size_t b = 0; b < kept.layout.buckets().size(); ++b)
    belay::bucket_reduction<T>{kept, b, memory, {}}(counted_calls{rank, ranks, &bytes});
  return bytes;
}

}  // namespace

TEST_CASE("a rank sends half the bytes of float where the optimizer's state is divided") {
  const std::vector<std::size_t> sizes{100'000, 4096, 1, 0, 20'000};
  for (int ranks : {2, 3, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::size_t wide = bytes_sent<float>(sizes, rank, ranks, belay::zero_stage::optimizer_state);
      CHECK(bytes_sent<bf16>(sizes, rank, ranks, belay::zero_stage::optimizer_state) == wide / 2);
      CHECK(wide > 0);
    }
  }
  // Where all keep the sum, it is gathered in float: three quarters.
  const std::vector<std::size_t> even{98'304};
  CHECK(4 * bytes_sent<bf16>(even, 0, 2, belay::zero_stage::none) ==
        3 * bytes_sent<float>(even, 0, 2, belay::zero_stage::none));
}

TEST_CASE("each rank's gradient is rounded once, and the sum is not") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto stage : {belay::zero_stage::none, belay::zero_stage::optimizer_state}) {
      for (const std::size_t size : {0U, 1U, 17U, 9000U}) {
        belay::host::world{ranks}.run([&](belay::host::rank& rank) {
          using group = belay::host::rank::group_type;
          belay::parameter<bf16> weight{{.name = "weight", .shape = {size}}};
          belay::gradient_buckets<bf16, group> buckets{{{weight, 0}}, {{rank.world(), stage}}, 4096, 1};
          const auto& layout = buckets.layout();
          std::vector<bf16> values(layout.elements()), wire(buckets.wire_elements());
          std::vector<float> gradients(layout.gradient_elements());
          const auto all = std::span(gradients);
          buckets.bind({std::span(values), all.first(layout.elements()), all.subspan(layout.elements()), wire});
          for (bf16& value : values) value = bf16(0.0F);
          const auto part = [size](int of, std::size_t i) {
            return 1.0F + static_cast<float>(i * 37 % (size + 1)) / 512 + static_cast<float>(of) / 1024;
          };
          for (int step = 0; step < 2; ++step) {
            buckets.begin(1);
            for (std::size_t i = 0; i < size; ++i) weight.gradient()[i] = part(rank.number(), i);
            buckets.contributed(0, 1, 0);
            const auto reduced = buckets.finish(belay::target_tokens{1});
            for (const auto& range : reduced.owned()) {
              for (std::size_t i = 0; i < range.count; ++i) {
                float sum = 0;
                for (int r = 0; r < ranks; ++r) {
                  const float own = part(r, range.offset + i);
                  sum += ranks == 1 ? own : static_cast<float>(bf16(own));
                }
                REQUIRE(range.gradient[i] == sum);
              }
            }
          }
        });
      }
    }
  }
}

TEST_CASE("memory for the wire that is missing or too short is refused") {
  belay::host::world{2}.run([&](belay::host::rank& rank) {
    belay::parameter<bf16> weight{{.name = "weight", .shape = {8}}};
    belay::gradient_buckets<bf16, belay::host::rank::group_type> buckets{{{weight, 0}}, {{rank.world()}}, 4096, 1};
    std::vector<bf16> values(buckets.layout().elements());
    std::vector<float> gradients(buckets.layout().gradient_elements());
    CHECK_THROWS_WITH_AS(buckets.bind(values, gradients), doctest::Contains("elements for the wire, got 0"),
                         belay::usage_error);
  });
}
