// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An expert exchange of one rank over a device: its kernels find, move and sum rows as the host's loops do.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"
#include "unit/backend/fake_cuda.hpp"
#include "unit/backend/slots_in.hpp"

using namespace fake_cuda;

namespace {

struct sizes {
  std::size_t rows, experts, k, hidden, capacity;
};

constexpr std::size_t room = 1 << 14;

// Logits, rows and gradients lie at the front of `memory`; from half of it on what comes of them.
template <class T, class Engine, class Memory>
void exchange_rows(const belay::host::group& ranks, Engine& engine, const Memory& memory, const Memory& slots,
                   const sizes& of) {
  using number = belay::compute_type_t<T>;
  test::slots_in<Memory> heap{&slots};
  belay::expert_exchange<T, belay::host::group, test::slots_in<Memory>> exchange(
      ranks, heap, {of.experts, of.k, of.hidden, of.capacity});
  const belay::invocation call{"experts", 0, 0, belay::where::current()};
  belay::invocation_memory kept;
  {
    belay::frame<Engine> frame(engine, call, belay::frame_mode::owing, kept);
    auto* const logits = reinterpret_cast<number*>(memory.data());
    auto* const x = reinterpret_cast<T*>(logits + of.rows * of.experts);
    auto* const dy = x + of.rows * of.hidden;
    auto* const dweights = reinterpret_cast<number*>(memory.data() + room / 2);
    auto* const dx = dweights + of.rows * of.k;
    auto* const y = reinterpret_cast<T*>(dx + of.rows * of.hidden);
    auto* const offsets = reinterpret_cast<std::size_t*>(memory.data() + room - 512);
    const auto routed = belay::route<number>(frame, {logits, {of.rows, of.experts}}, of.k);
    auto sent = exchange.dispatch(frame, {x, {of.rows, of.hidden}}, routed);
    const auto inputs = sent.rows(), outputs = belay::view<const T, 2>(sent.outputs());
    frame.each(outputs.size(), belay::kernel::add<T>{inputs.data(), inputs.data(), sent.outputs().data()});
    frame.each(of.experts + 1, belay::kernel::copy<std::size_t>{sent.offsets().data(), offsets});
    frame.each(of.experts, belay::kernel::copy<std::int64_t, std::size_t>{routed.global_counts.data(), offsets + 10});
    auto merged = std::move(sent).combine(frame, belay::view<T, 2>{y, {of.rows, of.hidden}});
    auto back = std::move(merged).backward(frame, {dy, {of.rows, of.hidden}}, {dweights, {of.rows, of.k}});
    const auto gradients = back.output_gradients();
    frame.each(gradients.size(), belay::kernel::add<T>{gradients.data(), inputs.data(), back.row_gradients().data()});
    std::move(back).finish(frame, belay::view<number, 2>{dx, {of.rows, of.hidden}});
  }
  engine.compute().synchronize();
  const std::size_t needed = exchange.take_overflow().needed;
  CHECK(needed == of.rows * of.k);
  engine.activations().release(kept.kept);
  engine.activations().release(kept.remembered);
}

template <class T>
void fill(std::byte* memory, const sizes& of) {
  using number = belay::compute_type_t<T>;
  std::memset(memory, 0, room);
  auto* const logits = reinterpret_cast<number*>(memory);
  for (std::size_t i = 0; i < of.rows * of.experts; ++i) logits[i] = number(0.25) * static_cast<number>(i * i % 7);
  auto* const x = reinterpret_cast<T*>(logits + of.rows * of.experts);
  for (std::size_t i = 0; i < 2 * of.rows * of.hidden; ++i)
    x[i] = static_cast<T>(number(0.37) * static_cast<number>(i * 5 % 11) - 2);
}

template <class T>
void check(const sizes& of) {
  belay::host::world{1}.run([&](belay::host::rank& rank) {
    const belay::host_pages expected(room), host_slots(room);
    fill<T>(expected.data(), of);
    belay::tier_meter host_meter;
    belay::host_engine host(belay::host_pages(room), host_meter);
    exchange_rows<T>(rank.world(), host, expected, host_slots, of);
    for (const fakes::device_options& how : orders()) {
      api_type api(how);
      const belay::cuda::device<api_type> gpu(api);
      const memory_type memory(gpu, room), slots(gpu, room);
      const host_side staged(gpu, room);
      fill<T>(staged.data(), of);
      belay::tier_meter meter;
      belay::engine<memory_type, kit_type> engine(memory_type(gpu, room), meter, kit_type(gpu),
                                                  belay::freed_memory::poisoned);
      const memory_type workspace(gpu, engine.kit().workspace_bytes());
      engine.kit().use_workspace({workspace.data(), workspace.size_bytes()});
      engine.compute().copy(memory.data(), staged.data(), room);
      exchange_rows<T>(rank.world(), engine, memory, slots, of);
      engine.compute().copy(staged.data(), memory.data(), room);
      engine.compute().synchronize();
      CHECK(std::memcmp(staged.data(), expected.data(), room) == 0);
      CHECK(std::count(api.calls().begin(), api.calls().end(), "sort") == 1);
    }
  });
}

}  // namespace

TEST_CASE("an expert exchange of one rank has the host's bits over a device, with and without room") {
  check<float>({5, 4, 2, 19, 10});
  check<float>({7, 3, 3, 16, 13});        // too little room
  check<float>({6, 8, 7, 3, 42});         // sums in passes
  check<belay::bf16>({4, 8, 7, 33, 28});  // rounded after each
}
