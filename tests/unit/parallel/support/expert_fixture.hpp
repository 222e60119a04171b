// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank needs in a test of an expert exchange: heap, engine, exchange and the memory of one invocation.
#pragma once

#include <cstddef>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"

namespace toy {

using group = belay::group;
using heap_type = belay::symmetric_heap<group>;
using test_frame = belay::frame<belay::host_engine>;
template <class T>
using exchange_type = belay::expert_exchange<T>;

// `leases` counts the slots that must be free at the end of a test.
template <class T>
struct expert_fixture {
  belay::tier_meter meter;
  heap_type heap;
  belay::host_engine engine;
  exchange_type<T> exchange;
  belay::invocation call;
  belay::invocation_memory memory;

  expert_fixture(const group& ranks, const belay::expert_settings& settings, const belay::stream_settings& streams = {})
      : heap(ranks, {4 << 20, 64, &meter}),
        engine(belay::host_pages(8 << 20), meter, streams, ranks.rank()),
        exchange(ranks, heap, settings) {}

  [[nodiscard]] test_frame begin(belay::frame_mode mode, std::size_t micro_batch = 0) {
    call = {"experts", 0, micro_batch, belay::where::current()};
    return {engine, call, mode, memory};
  }
  void end() {
    engine.activations().release(memory.kept);
    engine.activations().release(memory.remembered);
  }
  [[nodiscard]] std::size_t leases() const { return heap.live_slots(); }
};

template <class T>
belay::view<T, 2> matrix(std::vector<T>& values, std::size_t rows, std::size_t columns) {
  values.resize(rows * columns);
  return {values.data(), {rows, columns}};
}

}  // namespace toy
