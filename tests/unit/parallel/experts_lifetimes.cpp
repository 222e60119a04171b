// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/comm/rehearsal.hpp"
#include "belay/parallel/experts.hpp"
#include "support/expert_fixture.hpp"
#include "support/group_of_one.hpp"
#include "support/toy_experts.hpp"

namespace {

using belay::frame_mode;
using belay::view;
using toy::exchange_type;
using toy::expert_fixture;
using toy::group;
using toy::heap_type;
using toy::matrix;
using toy::test_frame;

constexpr std::size_t width = 8;
constexpr belay::expert_settings room_for_20{4, 2, width, 20};

toy::parameters<float> some_weights() { return {4, width, 11}; }

}  // namespace

TEST_CASE("an overflowing dispatch leaves the slots beside its own untouched") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    constexpr std::size_t hidden = 16, rows = 32, experts = 4, capacity = 4;
    constexpr std::size_t bytes = capacity * hidden * sizeof(float);
    expert_fixture<float> here(rank.world(), {experts, 2, hidden, capacity});
    // Slots come in address order: one before the dispatch's two, one after.
    auto before = here.heap.lease(bytes, "beside");
    auto hole = here.heap.lease(2 * bytes, "beside");
    auto after = here.heap.lease(bytes, "beside");
    here.heap.release(hole);
    const auto fill = [&](auto& slot) { std::fill_n(slot.local(), bytes, std::byte{0x5a}); };
    const auto intact = [&](auto& slot) {
      const std::byte* at = slot.local();
      return std::all_of(at, at + bytes, [](std::byte b) { return b == std::byte{0x5a}; });
    };
    fill(before);
    fill(after);
    auto x = toy::some_numbers<float>(rows * hidden, 1);
    std::vector<float> logits(rows * experts), y, dweights, dx;
    for (std::size_t row = 0; row < rows; ++row) logits[row * experts] = 5, logits[row * experts + 1] = 4;
    {
      auto frame = here.begin(frame_mode::owing);
      auto routed = belay::route<float>(frame, matrix(logits, rows, experts), 2);
      auto sent = here.exchange.dispatch(frame, matrix(x, rows, hidden), routed);
      CHECK(sent.offsets().back() <= capacity);
      std::fill_n(sent.outputs().data(), sent.outputs().size(), 1.0F);
      auto merged = std::move(sent).combine(frame, matrix(y, rows, hidden));
      auto back = std::move(merged).backward(frame, matrix(x, rows, hidden), matrix(dweights, rows, 2));
      std::fill_n(back.row_gradients().data(), back.row_gradients().size(), 1.0F);
      std::move(back).finish(frame, matrix(dx, rows, hidden));
    }
    here.end();
    rank.world().barrier();
    CHECK(intact(before));
    CHECK(intact(after));
    CHECK(here.exchange.take_overflow().needed == 2 * 2 * rows);
    // What found no room contributes nothing.
    CHECK(dx.back() == 0.0F);
    CHECK(y.back() == 0.0F);
    here.heap.release(before);
    here.heap.release(after);
  });
}

TEST_CASE("fifty steps, and fifty evaluations, leave slots, memory and obligations where they were") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    expert_fixture<float> here(rank.world(), room_for_20);
    here.exchange.prepare(0, 1, 2);
    auto weights = some_weights();
    toy::layer<float, exchange_type<float>> layer{weights, here.exchange, 2};
    const auto x = toy::some_numbers<float>(5 * width, 2);
    const view<const float, 2> input{x.data(), {5, width}};
    std::vector<float> dx;
    for (int step = 0; step < 50; ++step) {
      here.exchange.begin_step();
      {
        // Two micro-batches in flight, backwards in the other order.
        belay::invocation_memory first_memory, second_memory;
        const belay::invocation first_call{"experts", 0, 0, {}}, second_call{"experts", 0, 1, {}};
        test_frame first{here.engine, first_call, frame_mode::owing, first_memory};
        test_frame second{here.engine, second_call, frame_mode::owing, second_memory};
        auto a = layer.forward(first, input);
        auto b = layer.forward(second, input);
        CHECK(here.leases() == 4);
        layer.backward(second, std::move(b), input, matrix(dx, 5, width), x.data());
        layer.backward(first, std::move(a), input, matrix(dx, 5, width), x.data());
        here.engine.activations().release(first_memory.kept);
        here.engine.activations().release(first_memory.remembered);
        here.engine.activations().release(second_memory.kept);
        here.engine.activations().release(second_memory.remembered);
      }
      {
        auto frame = here.begin(frame_mode::observing);
        auto seen = layer.forward(frame, input);
        CHECK(here.leases() == 0);  // at once after the combine
        static_cast<void>(seen.out);
      }
      here.end();
      CHECK_FALSE(here.exchange.take_overflow().happened());
      CHECK(here.meter.live_bytes() == 0);
      CHECK(here.engine.obligations().open_count() == 0);
    }
    CHECK(here.heap.peak_bytes() == 5 * belay::leased_size(here.exchange.slot_bytes()));
  });
}

TEST_CASE("a lost handle stays on the ledger and its slots stay leased until the step reclaims them") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    expert_fixture<float> here(rank.world(), room_for_20);
    auto weights = some_weights();
    toy::layer<float, exchange_type<float>> layer{weights, here.exchange, 2};
    const auto x = toy::some_numbers<float>(5 * width, 2);
    {
      auto frame = here.begin(frame_mode::owing, 3);
      auto lost = layer.forward(frame, {x.data(), {5, width}});
      static_cast<void>(lost.out);
    }
    here.end();
    CHECK(here.leases() == 2);
    CHECK(here.engine.obligations().open_count() == 1);
    const auto text = here.engine.obligations().text();
    CHECK(text.find("combined tokens of layer 0 'experts' (micro-batch 3") != std::string::npos);
    CHECK(text.find("their backward was never called") != std::string::npos);
    static_cast<void>(here.exchange.take_overflow());
    here.exchange.begin_step();
    CHECK(here.leases() == 0);
  });
}

TEST_CASE("only combined tokens move: residues hold them") {
  CHECK_FALSE(std::is_move_constructible_v<belay::dispatched<float>>);
  CHECK_FALSE(std::is_move_constructible_v<belay::returning<float>>);
  CHECK(std::is_move_constructible_v<belay::merged<float>>);
  CHECK_FALSE(std::is_copy_constructible_v<belay::merged<float>>);
  CHECK_FALSE(std::is_constructible_v<std::optional<belay::dispatched<float>>, belay::dispatched<float>>);
}

TEST_CASE("a handle is consumed once") {
  belay::host::world{1}.run([](belay::host::rank& rank) {
    expert_fixture<float> here(rank.world(), {2, 1, 1, 4});
    std::vector<float> x{1, 2}, logits{1, 0, 0, 1}, y, dweights, dx;
    auto frame = here.begin(frame_mode::owing);
    auto routed = belay::route<float>(frame, matrix(logits, 2, 2), 1);
    struct box {
      belay::dispatched<float> sent;
    } unseen{here.exchange.dispatch(frame, matrix(x, 2, 1), routed)};  // in an aggregate, where no compiler looks
    auto merged = std::move(unseen.sent).combine(frame, matrix(y, 2, 1));
    CHECK_THROWS_AS(std::move(unseen.sent).combine(frame, matrix(y, 2, 1)).discard(frame, ""), belay::usage_error);
    std::move(merged).backward(frame, matrix(y, 2, 1), matrix(dweights, 2, 1)).finish(frame, matrix(dx, 2, 1));
    CHECK(here.engine.obligations().open_count() == 0);
  });
}

TEST_CASE("a handle that outlived its step touches nothing in any build") {
  belay::host::world{1}.run([](belay::host::rank& rank) {
    expert_fixture<float> here(rank.world(), {2, 1, 1, 4});
    std::vector<float> x{1, 2}, logits{1, 0, 0, 1}, y{7, 7};
    auto frame = here.begin(frame_mode::owing);
    auto routed = belay::route<float>(frame, matrix(logits, 2, 2), 1);
    struct box {
      belay::dispatched<float> sent;
    } unseen{here.exchange.dispatch(frame, matrix(x, 2, 1), routed)};
    here.engine.obligations().clear();  // what the end of a step does
    CHECK_THROWS_AS(std::move(unseen.sent).combine(frame, matrix(y, 2, 1)).discard(frame, ""), belay::usage_error);
    CHECK(y[0] == 7);
  });
}

TEST_CASE("an overflow that nobody read is an error of the next step in checked builds, and is kept in all") {
  belay::host::world{1}.run([](belay::host::rank& rank) {
    expert_fixture<float> here(rank.world(), {2, 1, 1, 1});
    std::vector<float> x{1, 2}, logits{1, 0, 1, 0}, y;
    here.exchange.begin_step();
    {
      auto frame = here.begin(frame_mode::observing);
      auto routed = belay::route<float>(frame, matrix(logits, 2, 2), 1);
      auto sent = here.exchange.dispatch(frame, matrix(x, 2, 1), routed);
      std::move(sent).discard(frame, "only counted");
    }
    here.end();
    if constexpr (belay::checked(belay::check_level::local)) {
      CHECK_THROWS_AS(here.exchange.begin_step(), belay::usage_error);
    } else {
      here.exchange.begin_step();
    }
    CHECK(here.exchange.take_overflow().needed == 2);
    here.exchange.begin_step();
    CHECK_FALSE(here.exchange.take_overflow().happened());
  });
}

TEST_CASE("a rehearsal leases what a run of two ranks leases, and touches nothing") {
  belay::tier_meter meter;
  std::size_t planned_slots = 0, planned_activations = 0;
  {
    const belay::rehearsal::rank rank(1, 2);
    heap_type heap(rank.world(), {std::size_t{1} << 40, 64, &meter});
    exchange_type<float> exchange(rank.world(), heap, room_for_20);
    exchange.prepare(0, 1, 1);
    auto weights = some_weights();
    toy::layer<float, exchange_type<float>> layer{weights, exchange, 2};
    belay::host_engine engine{belay::reserved_addresses(1 << 20), meter, {belay::stream_policy::rehearsal}, 1};
    const belay::invocation call;
    belay::invocation_memory memory;
    {
      belay::frame<belay::host_engine> frame{engine, call, frame_mode::owing, memory};
      auto saved = layer.forward(frame, {nullptr, {5, width}});
      layer.backward(frame, std::move(saved), {nullptr, {5, width}}, {nullptr, {5, width}}, nullptr);
    }
    CHECK(heap.live_slots() == 0);
    CHECK(engine.obligations().open_count() == 0);
    CHECK_FALSE(exchange.overflow_unread());
    planned_slots = heap.extent_bytes();
    planned_activations = engine.activations().offsets().peak_bytes();
  }
  CHECK(planned_slots == 3 * belay::leased_size(20 * width * sizeof(float)));
  belay::host::world{2}.run([&](belay::host::rank& rank) {
    expert_fixture<float> here(rank.world(), room_for_20);
    auto weights = some_weights();
    toy::layer<float, exchange_type<float>> layer{weights, here.exchange, 2};
    const auto x = toy::some_numbers<float>(5 * width, 2);
    const view<const float, 2> input{x.data(), {5, width}};
    std::vector<float> dx;
    {
      auto frame = here.begin(frame_mode::owing);
      auto saved = layer.forward(frame, input);
      layer.backward(frame, std::move(saved), input, matrix(dx, 5, width), x.data());
    }
    here.end();
    CHECK(here.heap.extent_bytes() == planned_slots);
    CHECK(here.engine.activations().offsets().peak_bytes() == planned_activations);
    CHECK_FALSE(here.exchange.take_overflow().happened());
  });
}

TEST_CASE("groups that reach no memory of each other, or have equal counts alone, are refused") {
  const belay::host_pages memory(1 << 12);
  heap_type heap(test::group_over(memory), {.bytes = 1 << 12});
  const auto refusal = [&](bool belay::group_traits::* missing) -> std::string {
    belay::group_traits promises = test::group_of_one::usual_traits();
    promises.*missing = false;
    const group lacks(std::make_shared<test::group_of_one>(std::span(memory.data(), memory.size_bytes()), promises));
    try {
      exchange_type<float>(lacks, heap, {2, 1, 1, 4});
    } catch (const belay::usage_error& slip) {
      return slip.what();
    }
    return "";
  };
  CHECK(refusal(&belay::group_traits::addresses_peers).find("experts are reached through symmetric memory") !=
        std::string::npos);
  CHECK(refusal(&belay::group_traits::has_varying_counts).find("gather their counts with all_gather_v") !=
        std::string::npos);
}

TEST_CASE("shapes and sizes that make no sense are refused") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    belay::tier_meter meter;
    heap_type heap(rank.world(), {1 << 16, 16, &meter});
    CHECK_THROWS_AS((exchange_type<float>(rank.world(), heap, {3, 1, 4, 4})), belay::usage_error);
    CHECK_THROWS_AS((exchange_type<float>(rank.world(), heap, {4, 5, 4, 4})), belay::usage_error);
    CHECK_THROWS_AS((exchange_type<float>(rank.world(), heap, {4, 1, 4, std::size_t{1} << 31})), belay::usage_error);
  });
}
