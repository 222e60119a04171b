// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rehearsal has the promises of the world that will run. What that lacks is refused there, before anything is
// allocated and before a body runs, on every rank alike; in a world that is used without launch, by the call.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "unit/train/support/network.hpp"

namespace {

// Ranks of threads whose groups are said to promise less.
struct lacking_world {
  belay::group_traits traits;
  belay::host::world threads{2};

  [[nodiscard]] int size() const noexcept { return threads.size(); }
  [[nodiscard]] belay::group_traits promises() const noexcept { return traits; }
  template <class Body>
  void run(Body&& body) const {
    threads.run(body);
  }
};
[[nodiscard]] lacking_world without(bool belay::group_traits::* promise) {
  lacking_world out{belay::rehearsal::group::all_promises()};
  out.traits.*promise = false;
  return out;
}

// How a launch is refused; a body that runs is none.
template <class Body>
std::string refusal(const lacking_world& world, const Body& body) {
  try {
    belay::launch(world, [&](belay::rank& rank, auto& run) {
      CHECK(run.rehearsing());
      body(rank, run);
    });
  } catch (const belay::usage_error& lacks) {
    return lacks.what();
  }
  return "";
}
// One of two ranks whose group lacks a promise, without the other; it counts what would have moved.
struct group_of_two final : belay::group_interface {
  group_of_two(int number, const belay::group_traits& traits, std::size_t& calls)
      : group_interface(number, 2, traits), calls_(&calls) {}

  [[nodiscard]] int rank() const override { return unasked_rank(); }
  [[nodiscard]] std::span<const int> members() const override { return members_; }
  void run(const belay::op_call&) override { ++*calls_; }
  [[nodiscard]] belay::pending start(const belay::op_call&, const belay::start_order& how) override { refuse(how); }
  [[nodiscard]] belay::pending start_composite(belay::operation, const belay::borrowed_work<const belay::group_calls&>&,
                                               const belay::start_order& how) override {
    refuse(how);
  }
  [[nodiscard]] belay::pending start_local(belay::operation, const belay::borrowed_work<void*>&,
                                           const belay::start_order& how) override {
    refuse(how);
  }
  [[nodiscard]] belay::symmetric_region make_symmetric(std::size_t bytes, belay::where at) override {
    return belay::symmetric_region::map(size(), bytes, belay::backing::addresses_only, at);
  }
  [[nodiscard]] std::shared_ptr<group_interface> within(std::chrono::duration<double>, belay::where) override {
    return std::make_shared<group_of_two>(unasked_rank(), traits(), *calls_);
  }
  void trace_into(belay::span_log*, belay::where) override {}

 private:
  [[noreturn]] void refuse(const belay::start_order& how) {
    ++*calls_;
    throw std::runtime_error(std::string(how.at.file) + ": the other rank is not there");
  }

  std::size_t* calls_;
  std::array<int, 2> members_{0, 1};
};
struct rank_of_two final : belay::rank_interface {
  static constexpr int ranks = 2;

  rank_of_two(int number, bool belay::group_traits::* promise, std::size_t& calls)
      : rank_interface(number, ranks), world_(group_without(number, promise, calls)) {}

  [[nodiscard]] const belay::group& world() override { return world_; }
  [[nodiscard]] belay::group make_group(std::span<const int>, belay::where) override { return world_; }
  [[nodiscard]] std::uint64_t abandoned() const override { return 0; }

 private:
  static belay::group group_without(int number, bool belay::group_traits::* promise, std::size_t& calls) {
    belay::group_traits traits = belay::rehearsal::group::all_promises();
    traits.rehearsed = false;
    traits.*promise = false;
    return belay::group(std::make_shared<group_of_two>(number, traits, calls));
  }

  belay::group world_;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr const char* order =
    "a partial sum becomes the same bits whether it is replicated or sharded: take a communicator with "
    "sums_in_rank_order";
constexpr const char* counts =
    "the parts of a sharded tensor may differ in size: take a communicator with has_varying_counts";

}  // namespace

TEST_CASE("buckets need sums that are alike on all ranks, and varying counts") {
  const auto makes_a_store = [](belay::rank& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network_bench::network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
  };
  CHECK(contains(refusal(without(&belay::group_traits::sums_alike), makes_a_store),
                 "ranks that replicate a parameter update it with the same bits: take a communicator with "
                 "sums_in_rank_order"));
  CHECK(contains(refusal(without(&belay::group_traits::has_varying_counts), makes_a_store),
                 "the ranks of a replica group own different numbers of gradients: take a communicator with "
                 "has_varying_counts"));
  // Sums in whatever order, alike on all ranks, are enough.
  lacking_world any_order = without(&belay::group_traits::sums_in_rank_order);
  CHECK_NOTHROW(static_cast<void>(belay::rehearse(any_order, makes_a_store)));
}

TEST_CASE("redistributions over one group need sums in rank order, and varying counts") {
  const auto to_whole = [](belay::rank& rank, auto& run) {
    const std::span<float> memory = run.template lease<float>(belay::tier::device, 6, "sums");
    const std::array<std::size_t, 2> split{4, 2};
    belay::sharded<float, belay::partial<belay::sum>, belay::group> sums{rank.world(), memory,
                                                                         belay::shard_counts{split}};
    static_cast<void>(belay::redistribute<belay::replicate>(std::move(sums)));
  };
  CHECK(contains(refusal(without(&belay::group_traits::sums_in_rank_order), to_whole), order));
  const auto to_parts = [](belay::rank& rank, auto& run) {
    const std::span<int> memory = run.template lease<int>(belay::tier::device, 6, "sums");
    const std::array<std::size_t, 2> split{4, 2};
    belay::sharded<int, belay::partial<belay::sum>, belay::group> sums{rank.world(), memory,
                                                                       belay::shard_counts{split}};
    static_cast<void>(belay::redistribute<belay::shard<0>>(std::move(sums)));
  };
  CHECK(contains(refusal(without(&belay::group_traits::has_varying_counts), to_parts), counts));
  // Integers have the same sum in any order.
  CHECK_NOTHROW(static_cast<void>(belay::rehearse(without(&belay::group_traits::sums_in_rank_order), to_parts)));
}

TEST_CASE("redistributions over a mesh need what those over a group do") {
  const auto over_mesh = [](belay::rank& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    using sums_type = belay::sharded<float, belay::partial<belay::sum, belay::axis::data>, decltype(mesh)>;
    const std::span<float> memory = run.template lease<float>(belay::tier::device, 6, "sums");
    const std::span<float> storage = run.template lease<float>(belay::tier::device, 12, "storage");
    sums_type sums{mesh, {6}, memory};
    static_cast<void>(belay::redistribute<belay::shard<0, belay::axis::data>>(std::move(sums), storage));
  };
  CHECK(contains(refusal(without(&belay::group_traits::sums_in_rank_order), over_mesh), order));
  CHECK(contains(refusal(without(&belay::group_traits::has_varying_counts), over_mesh), counts));
}

TEST_CASE("experts need varying counts, and memory that peers reach") {
  const auto exchanges = [](belay::rank& rank, auto& run) {
    belay::mesh mesh{rank, {.expert = rank.size()}};
    belay::expert_exchange experts{run, mesh.expert(), {.experts = 4, .k = 2, .hidden = 8, .capacity = 16}};
  };
  CHECK(contains(refusal(without(&belay::group_traits::has_varying_counts), exchanges),
                 "the ranks of an expert exchange gather their counts with all_gather_v: take a communicator with "
                 "has_varying_counts"));
  CHECK(contains(refusal(without(&belay::group_traits::addresses_peers), exchanges),
                 "experts are reached through symmetric memory, or memory that peers send into: take a group that is "
                 "directly_addressable, mirrored_by_messages or has_local_memory"));
  // Peers that send into a rank's own memory are enough.
  lacking_world sent = without(&belay::group_traits::addresses_peers);
  sent.traits.has_local_memory = true;
  CHECK_NOTHROW(static_cast<void>(belay::rehearse(sent, exchanges)));
}

TEST_CASE("a symmetric heap needs memory that peers reach") {
  const auto leases = [](belay::rank& rank, auto&) {
    belay::symmetric_heap<belay::group> heap(rank.world(), {.bytes = 4096});
  };
  CHECK(contains(refusal(without(&belay::group_traits::addresses_peers), leases),
                 "a symmetric heap needs a group whose ranks can address each other's memory"));
}

TEST_CASE("without a launch the constructor or the call refuses on every rank, and nothing has moved") {
  const auto refusal_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const belay::usage_error& lacks) {
      return lacks.what();
    }
    return "";
  };
  for (int number = 0; number < rank_of_two::ranks; ++number) {
    CAPTURE(number);
    std::size_t calls = 0;
    const auto rank_without = [&](bool belay::group_traits::* promise) {
      return belay::rank(std::make_unique<rank_of_two>(number, promise, calls));
    };
    belay::parameter<float> weight{{"weight", {2}, belay::initial::constant(0)}};
    const auto makes_buckets = [&](bool belay::group_traits::* promise) {
      const belay::rank self = rank_without(promise);
      belay::gradient_buckets<float, belay::group> buckets{{{weight, 0}}, {{self.world()}}, 1U << 20, 1};
    };
    CHECK(contains(refusal_of([&] { makes_buckets(&belay::group_traits::sums_alike); }),
                   "ranks that replicate a parameter update it with the same bits"));
    CHECK(contains(refusal_of([&] { makes_buckets(&belay::group_traits::has_varying_counts); }),
                   "the ranks of a replica group own different numbers of gradients"));
    std::array<float, 3> values{1, 2, 3};
    const std::array<std::size_t, 2> split{2, 1};
    const auto redistributes = [&](bool belay::group_traits::* promise) {
      const belay::rank self = rank_without(promise);
      belay::sharded<float, belay::partial<belay::sum>, belay::group> sums{self.world(), values,
                                                                           belay::shard_counts{split}};
      static_cast<void>(belay::redistribute<belay::shard<0>>(std::move(sums)));
    };
    const auto redistributes_over_mesh = [&](bool belay::group_traits::* promise) {
      belay::rank self = rank_without(promise);
      belay::mesh mesh{self, {.data = rank_of_two::ranks}};
      std::array<float, 6> memory{};
      const std::span<float> storage(memory);
      belay::sharded<float, belay::partial<belay::sum, belay::axis::data>, belay::mesh> sums{mesh, {3}, values};
      static_cast<void>(belay::redistribute<belay::shard<0, belay::axis::data>>(std::move(sums), storage));
    };
    for (const auto& [promise, sentence] : {std::pair(&belay::group_traits::sums_in_rank_order, order),
                                            std::pair(&belay::group_traits::has_varying_counts, counts)}) {
      CHECK(contains(refusal_of([&] { redistributes(promise); }), sentence));
      CHECK(contains(refusal_of([&] { redistributes_over_mesh(promise); }), sentence));
    }
    CHECK(values == std::array<float, 3>{1, 2, 3});
    const auto makes_experts = [&](bool belay::group_traits::* promise) {
      const belay::rank self = rank_without(promise);
      belay::symmetric_heap<belay::group> heap(self.world(), {.bytes = 4096});
      belay::expert_exchange<float> experts{self.world(), heap, {.experts = 4, .k = 2, .hidden = 8, .capacity = 16}};
    };
    CHECK(contains(refusal_of([&] { makes_experts(&belay::group_traits::addresses_peers); }),
                   "a symmetric heap needs a group whose ranks can address each other's memory"));
    CHECK(contains(refusal_of([&] { makes_experts(&belay::group_traits::has_varying_counts); }),
                   "the ranks of an expert exchange gather their counts with all_gather_v"));
    CHECK(calls == 0);
  }
}

TEST_CASE("a launch does not take the policy of a rehearsal") {
  const auto body = [](belay::rank&, auto&) {};
  CHECK_THROWS_WITH_AS(belay::launch(belay::host::world{2}, body,
                                     belay::launch_options{.streams = {belay::stream_policy::rehearsal, 0}}),
                       doctest::Contains("belay::rehearse(world, body) rehearses it"), belay::usage_error);
}
