// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows that ranks exchange with their experts, twice, over a world of the host and over ranks that share a device or
// have one each.
// Includes no doctest, so that nvcc can take it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"

namespace exchanged_rows {

struct sizes {
  std::size_t rows, experts, k, hidden, capacity;
};

inline constexpr std::size_t room = 1 << 14;

// Logits, rows and gradients lie at the front of `memory`; from half of it on what comes of them. A second round sends
// what the first has summed, in the slots that it has freed. Returns the rows that a rank was to receive.
template <class T, class Engine, class Memory>
std::size_t exchange_rows(const belay::group& ranks, Engine& engine, const Memory& memory,
                          belay::symmetric_heap<belay::group>& heap, const sizes& of) {
  using number = belay::compute_type_t<T>;
  belay::expert_exchange<T> exchange(ranks, heap, {of.experts, of.k, of.hidden, of.capacity});
  for (std::size_t round = 0; round < 2; ++round) {
    const belay::invocation call{"experts", 0, round, belay::where::current()};
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
      frame.each(exchange.local_experts() + 1, belay::kernel::copy<std::size_t>{sent.offsets().data(), offsets});
      frame.each(of.experts, belay::kernel::copy<std::int64_t, std::size_t>{routed.global_counts.data(), offsets + 10});
      auto merged = std::move(sent).combine(frame, belay::view<T, 2>{y, {of.rows, of.hidden}});
      auto back = std::move(merged).backward(frame, {dy, {of.rows, of.hidden}}, {dweights, {of.rows, of.k}});
      const auto gradients = back.output_gradients();
      frame.each(gradients.size(), belay::kernel::add<T>{gradients.data(), inputs.data(), back.row_gradients().data()});
      std::move(back).finish(frame, belay::view<number, 2>{dx, {of.rows, of.hidden}});
      frame.each(of.rows * of.hidden, belay::kernel::copy<T>{y, x});
    }
    engine.activations().release(kept.kept);
    engine.activations().release(kept.remembered);
  }
  engine.compute().synchronize();
  return exchange.take_overflow().needed;
}

template <class T>
void fill(std::byte* memory, const sizes& of, std::size_t seed) {
  using number = belay::compute_type_t<T>;
  std::memset(memory, 0, room);
  auto* const logits = reinterpret_cast<number*>(memory);
  for (std::size_t i = 0; i < of.rows * of.experts; ++i)
    logits[i] = number(0.25) * static_cast<number>((i * i + seed) % 7);
  auto* const x = reinterpret_cast<T*>(logits + of.rows * of.experts);
  for (std::size_t i = 0; i < 2 * of.rows * of.hidden; ++i)
    x[i] = static_cast<T>(number(0.37) * static_cast<number>((i * 5 + seed) % 11) - 2);
}

// On one rank, the last with no rows where there are more.
inline sizes share_of(sizes of, int rank, int ranks) {
  if (ranks > 1 && rank + 1 == ranks) of.rows = 0;
  of.rows += static_cast<std::size_t>(rank);
  return of;
}

// What each rank has in the end, and the rows that one was to receive.
struct result {
  std::vector<std::byte> memory;
  std::size_t needed;
  bool operator==(const result&) const = default;
};

template <class T>
std::vector<result> on_host(int ranks, const sizes& all) {
  return belay::host::world{ranks}.run([&](belay::host::rank& rank) {
    const sizes of = share_of(all, rank.number(), ranks);
    const belay::host_pages memory(room);
    fill<T>(memory.data(), of, static_cast<std::size_t>(rank.number()));
    belay::tier_meter meter;
    belay::host_engine engine(belay::host_pages(room), meter);
    const belay::group world = rank.world();
    belay::symmetric_heap heap(world, {.bytes = room});
    const std::size_t needed = exchange_rows<T>(world, engine, memory, heap, of);
    return result{{memory.data(), memory.data() + room}, needed};
  });
}
// What a rank with a device has.
template <class Api>
struct of_rank {
  using memory_type = belay::cuda::device_memory<Api>;

  template <class Rank>
  of_rank(Rank& rank, belay::freed_memory left)
      : memory(rank.gpu(), room),
        staged(rank.gpu(), room),
        heap(belay::ranks_of_heap(rank.world()), {.bytes = room}),
        engine(memory_type(rank.gpu(), room), meter, rank.make_kit(), left),
        workspace(rank.gpu(), engine.kit().workspace_bytes()) {
    engine.kit().use_workspace({workspace.data(), workspace.size_bytes()});
  }

  memory_type memory;
  belay::cuda::pinned_memory<Api> staged;
  belay::symmetric_heap<belay::group> heap;
  belay::tier_meter meter;
  belay::engine<memory_type, belay::cuda::kit<Api>> engine;
  memory_type workspace;
};
// Over a world of such ranks.
template <class T, class World>
std::vector<result> on_world(World&& world, const sizes& all, belay::freed_memory left) {
  using api_type = typename std::remove_cvref_t<World>::api_type;
  // They outlive the run: where a rank fails, peers may still send what is there.
  std::vector<std::shared_ptr<const void>> kept(static_cast<std::size_t>(world.size()));
  return world.run([&](auto& rank) {
    const sizes of = share_of(all, rank.number(), rank.size());
    const auto has = std::make_shared<of_rank<api_type>>(rank, left);
    kept[static_cast<std::size_t>(rank.number())] = has;
    auto& stream = has->engine.compute();
    std::byte* const staged = has->staged.data();
    fill<T>(staged, of, static_cast<std::size_t>(rank.number()));
    stream.copy(has->memory.data(), staged, room);
    const std::size_t needed = exchange_rows<T>(rank.world(), has->engine, has->memory, has->heap, of);
    stream.copy(staged, has->memory.data(), room);
    stream.synchronize();
    return result{{staged, staged + room}, needed};
  });
}
// Of ranks that share one.
template <class T, class Api>
std::vector<result> on_device(Api& api, int ranks, const sizes& all, belay::freed_memory left) {
  return on_world<T>(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 512, .groups = 2}), all, left);
}

}  // namespace exchanged_rows
