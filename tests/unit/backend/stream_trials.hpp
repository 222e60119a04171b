// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What streams, events and memory of a device do where something runs out, is recorded again, or is timed: of any Api,
// so that the device of the host and a GPU are asked the same. Each trial says what is wrong; nothing where all is
// right. Includes no doctest, so that nvcc can take it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/core/error.hpp"
#include "belay/core/span_log.hpp"
#include "belay/device/stream.hpp"

namespace stream_trials {

struct doubled {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] *= 2; }
};
struct plus_one {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] += 1; }
};

/// A device with memory of one number, and a stream.
template <class Api>
struct setting {
  using stream_type = belay::cuda::stream<Api>;

  explicit setting(Api& api) : gpu(api), memory(gpu, 4096), staged(gpu, 4096), compute(gpu) {}
  [[nodiscard]] float* x() const { return reinterpret_cast<float*>(memory.data()); }
  [[nodiscard]] float* host() const { return reinterpret_cast<float*>(staged.data()); }
  /// The number, as the stream finds it.
  void begin(float value) {
    host()[0] = value;
    compute.copy(x(), host(), sizeof(float));
  }
  /// The result of the work so far.
  [[nodiscard]] float value() {
    compute.copy(host() + 1, x(), sizeof(float));
    compute.synchronize();
    return host()[1];
  }
  [[nodiscard]] bool works() {
    begin(3);
    compute.each(1, doubled{x()});
    return value() == 6;
  }
  [[nodiscard]] std::size_t free_bytes() const {
    belay::cuda::device_memory_info room;
    gpu.expect(gpu.api().memory_info(room), "memory_info", 0, {});
    return room.free;
  }

  belay::cuda::device<Api> gpu;
  belay::cuda::device_memory<Api> memory;
  belay::cuda::pinned_memory<Api> staged;
  stream_type compute;
};

/// Memory beyond what there is is refused with its bytes, and leaves nothing behind: `forgotten()` says
/// whether the library has forgotten the error. So where a device is full, and streams are made there.
template <class Api, class Forgotten>
std::string running_out(Api& api, const Forgotten& forgotten) {
  setting<Api> here(api);
  const std::size_t before = here.free_bytes(), too_much = 2 * before + (std::size_t{1} << 20);
  try {
    const belay::cuda::device_memory<Api> none(here.gpu, too_much);
    return "more memory was given than there is";
  } catch (const belay::backend_error& told) {
    if (told.about().call != "allocate" || told.about().bytes != too_much) return told.what();
  }
  if (!forgotten()) return "an allocation that was refused is told by later calls too";
  if (!here.works()) return "the stream does not go on after memory was refused";
  {
    std::deque<belay::cuda::device_memory<Api>> all;
    bool full = false;
    for (std::size_t piece = before / 4; piece > before / 4096; piece /= 2) try {
        for (;;) all.emplace_back(here.gpu, piece);
      } catch (const belay::backend_error&) {
        full = true;  // of such pieces
      }
    if (!full || !forgotten()) return "a full device is not told, or told by later calls too";
    if (!here.works()) return "a stream does not work on a full device";
    std::deque<belay::cuda::stream<Api>> streams;
    try {
      for (int i = 0; i < 40; ++i)
        streams.emplace_back(here.gpu, i % 4 == 0 ? belay::stream_kind::compute : belay::stream_kind::copy);
    } catch (const belay::backend_error& told) {
      if (told.about().call != "make_stream" && told.about().call != "make_event") return told.what();
    }
    if (!forgotten() || !here.works()) return "streams that were refused are told by later calls too";
  }
  const belay::cuda::device_memory<Api> half(here.gpu, before / 2);
  const belay::cuda::stream<Api> another(here.gpu);
  return here.works() ? "" : "nothing works after a full device was freed";
}

/// A wait is for what was recorded last when it was asked for, though the event is recorded again meanwhile: else the
/// two streams wait for each other. `limit`: for how long that is waited for.
template <class Api>
std::string recorded_again(Api& api, std::chrono::seconds limit) {
  setting<Api> here(api);
  auto& first = here.compute;
  belay::cuda::stream<Api> second(here.gpu, belay::stream_kind::copy);
  std::array<typename Api::event_type, 2> events{};
  for (auto& each : events) here.gpu.expect(api.make_event(each), "make_event", 0, {});
  const auto expect = [&](const typename Api::status_type& got) { here.gpu.expect(got, "trial", 0, {}); };
  here.begin(1);
  first.each(1, doubled{here.x()});
  expect(api.record(events[0], first.handle()));
  expect(api.wait(second.handle(), events[0]));
  second.each(1, plus_one{here.x()});
  expect(api.record(events[1], second.handle()));
  expect(api.wait(first.handle(), events[1]));
  first.each(1, doubled{here.x()});
  expect(api.record(events[0], first.handle()));
  bool reached = false;
  for (int tries = 0; tries < 100 && !reached; ++tries) expect(api.await(events[0], limit / 100, reached));
  if (!reached) {
    constexpr const char* wrong = "a wait for an event is one for what is recorded after it";
    std::fprintf(stderr, "%s: the streams will not end\n", wrong);
    return wrong;
  }
  for (const auto& each : events) expect(api.destroy_event(each));
  if (here.value() != 6) return "a wait for an event does not wait for what was recorded before it";
  // Of Belay's events, which are a ring.
  here.begin(1);
  first.each(1, doubled{here.x()});
  const belay::stream_event early = first.record();
  for (int i = 0; i < 300; ++i) static_cast<void>(first.record());
  second.wait(early);
  second.each(1, plus_one{here.x()});
  first.wait(second.record());
  return here.value() == 3 ? "" : "a wait for an event of long ago does not wait";
}

/// Spans of a stream have times that are ordered and nested as what is queued, and lie between those that the host
/// takes before and after, but for `slack` nanoseconds: the device's clock is set by the host's once a trace.
template <class Api>
std::string timed(Api& api, std::int64_t slack) {
  setting<Api> here(api);
  std::vector<belay::traced_span> room(200);
  belay::span_log log(room);
  const std::int64_t begun = belay::span_log::now();
  here.compute.trace_into(&log);
  constexpr std::size_t layers = 20;
  for (std::size_t i = 0; i < layers; ++i) {
    const auto span = [&](const char* name) {
      return log.add({.name = name, .kind = belay::span_kind::layer, .lane = belay::span_lane::compute});
    };
    const belay::queued_span layer(here.compute, span("layer"));
    here.compute.each(1, doubled{here.x()});
    const belay::queued_span part(here.compute, span("part"));
    here.compute.each(1, plus_one{here.x()});
  }
  here.compute.trace_into(nullptr);
  const std::int64_t ended = belay::span_log::now();
  const auto spans = log.spans();
  if (spans.size() != 2 * layers) return "spans are missing";
  for (const belay::traced_span& each : spans) {
    if (!each.over() || each.end < each.begin) return "a span is not over";
    if (each.begin < begun - slack || each.end > ended + slack) return "a span lies outside of its trace";
  }
  for (std::size_t i = 0; i < spans.size(); i += 2) {
    const belay::traced_span &layer = spans[i], &part = spans[i + 1];
    if (part.begin < layer.begin || part.end > layer.end) return "a span does not lie in the one around it";
    if (i > 0 && layer.begin < spans[i - 2].end) return "spans of one stream overlap";
  }
  return "";
}

}  // namespace stream_trials
