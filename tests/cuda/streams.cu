// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Streams, events and graphs of the real runtime: what it returns where memory runs out, and what that leaves behind;
// events that are recorded again, and timed ones. What a stream captures runs when it is launched, what CUDA forbids in
// a capture is an error and the stream goes on, and steps that are launched have the losses of steps that are not.
// Without a GPU it says so.
#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "support/card.hpp"
#include "unit/backend/stream_trials.hpp"
#include "unit/train/support/graph_trainer.hpp"

namespace {

using api_type = belay::cuda::runtime_api;
using stream_type = belay::cuda::stream<api_type>;
using belay::graph_use;

using stream_trials::doubled, stream_trials::plus_one;
using setting = stream_trials::setting<api_type>;

int failures = 0;
void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("streams: %s\n", what);
  ++failures;
}

void tried(const char* what, const std::string& wrong) {
  std::printf("%s: %s\n", what, wrong.empty() ? "as it should be" : wrong.c_str());
  check(wrong.empty(), wrong.c_str());
}

void launches(api_type& api) {
  setting here(api);
  stream_type& compute = here.compute;
  stream_type copies(here.gpu, belay::stream_kind::copy);
  here.begin(1);
  belay::stream_event within;
  belay::cuda::graph<api_type> graph = compute.capture([&] {
    compute.each(1, doubled{here.x()});
    copies.wait(compute.record());
    copies.each(1, plus_one{here.x()});
    compute.wait(copies.record());
    compute.each(1, doubled{here.x()});
    within = compute.record();
    compute.each(1, plus_one{here.x()});
  });
  check(here.value() == 1, "a capture has run something");
  compute.launch(graph);
  within.synchronize();
  compute.launch(graph);
  check(here.value() == 31, "two launches do not give 1 -> 7 -> 31");
}

template <class Body>
void refused(api_type& api, const char* what, const Body& body) {
  setting here(api);
  stream_type& compute = here.compute;
  stream_type copies(here.gpu, belay::stream_kind::copy);
  bool threw = false;
  try {
    static_cast<void>(compute.capture([&] { body(here, compute, copies); }));
  } catch (const belay::backend_error&) {
    threw = true;
  }
  check(threw, what);
  here.begin(1);
  compute.each(1, doubled{here.x()});
  check(here.value() == 2, "the stream does not go on after a capture that has failed");
}

template <class T>
void trains(api_type& api) {
  graph_trainer::record eager, launched;
  const graph_trainer::trial plain{.use = graph_use::none}, captured{.overflows_in = 7};
  belay::launch(belay::cuda::world(api, belay::host::world(1)), graph_trainer::body<T>(plain, eager));
  belay::launch(belay::cuda::world(api, belay::host::world(1)), graph_trainer::body<T>(captured, launched));
  check(eager.losses.size() == plain.steps, "steps are missing");
  check(launched.same_numbers(eager), "steps that are launched have other losses or norms");
  check(launched.launches == 19 && launched.bodies == 4, "steps were not launched");
}
// Copies between pinned memory and the device, and kernels that address it, in all three parts.
void offloads(api_type& api) {
  constexpr belay::tier lower = belay::tier::pinned;
  graph_trainer::trial what{.use = graph_use::none, .stage = belay::zero_stage::parameters};
  graph_trainer::record eager, launched;
  belay::launch(belay::cuda::world(api, belay::host::world(1)), graph_trainer::body<float>(what, eager));
  what.use = graph_use::captured;
  what.state = what.gradients = what.parameters = what.activations = lower;
  belay::launch(belay::cuda::world(api, belay::host::world(1)), graph_trainer::body<float>(what, launched));
  check(launched.same_numbers(eager), "steps that offload and are launched have other losses or norms");
  check(launched.launches == 19, "steps that offload were not launched");
}

}  // namespace

int main() {
  api_type api;
  try {
    const belay::cuda::device<api_type> gpu(api);
  } catch (const belay::backend_error& none) {
    std::printf("no GPU, compiled only: %s\n", none.what());
    return test::code_without_card();
  }
  const auto forgotten = [] { return cudaPeekAtLastError() == cudaSuccess; };
  tried("where memory runs out", stream_trials::running_out(api, forgotten));
  tried("an event that is recorded again", stream_trials::recorded_again(api, std::chrono::seconds(20)));
  tried("timed events", stream_trials::timed(api, 100'000'000));
  check(forgotten(), "an error of before is told by later calls");
  launches(api);
  refused(api, "memory is allocated in a capture", [](const setting& here, stream_type&, stream_type&) {
    static_cast<void>(belay::cuda::device_memory<api_type>(here.gpu, 64));
  });
  refused(api, "an event from outside is waited for in a capture",
          [](const setting& here, stream_type& compute, stream_type& copies) {
            copies.copy(here.x(), here.host(), sizeof(float));
            compute.wait(copies.record());
          });
  refused(api, "a stream is not joined in a capture",
          [](const setting& here, stream_type& compute, stream_type& copies) {
            copies.wait(compute.record());
            copies.each(1, doubled{here.x()});
          });
  trains<float>(api);
  trains<belay::bf16>(api);
  offloads(api);
  if (failures == 0) std::printf("streams, events and graphs are as they should be, and steps of graphs train\n");
  return failures == 0 ? 0 : 1;
}
