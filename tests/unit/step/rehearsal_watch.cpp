// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/rehearsal_watch.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "belay/step.hpp"
#include "unit/step/support/ended_child.hpp"

namespace {

using ended_child::ended, ended_child::in_child, ended_child::segv_is_default;

// A rehearsed engine that explains faults.
struct engine : belay::host_engine {
  explicit engine(belay::tier_meter& meter) : belay::host_engine(belay::reserved_addresses{1 << 20}, meter, {belay::stream_policy::rehearsal}, 0) {
    watch().explain_faults();
  }
};
using input = belay::view<const float, 2>;

// Touches its output by itself, not in a kernel, in one of its calls.
struct careless {
  enum class fault { none, in_forward, in_backward, in_recompute, null, read_only } where_it_faults = fault::none;
  int forwards = 0;

  struct residue {
    belay::view<float, 2> out;
  };
  [[nodiscard]] static const char* name() { return "careless"; }
  [[nodiscard]] static std::size_t index() { return 7; }

  residue forward(auto& frame, input x) {
    residue r{frame.template keep<float>(x.shape())};
    ++forwards;
    if (where_it_faults == fault::in_forward || (where_it_faults == fault::in_recompute && forwards == 2))
      write(r.out.data() + 3);
    if (where_it_faults == fault::null) write(nullptr);
    if (where_it_faults == fault::read_only) write(const_cast<float*>(&constant));
    return r;
  }
  void backward(auto&, residue&& r, input, belay::view<float, 2>) {
    if (where_it_faults == fault::in_backward) write(r.out.data());
  }

  static void write(float* at) { *const_cast<volatile float*>(at) = 1; }
  static const float constant;
};
const float careless::constant = 4;

void rehearse(careless::fault fault, bool recomputed = false) {
  belay::tier_meter meter;
  engine planned{meter};
  careless layer{fault};
  belay::recompute again{layer};
  belay::step step{planned};
  const input x{nullptr, {4, 8}};
  const auto both = [&](auto& of) {
    auto h = belay::forward(step.micro_batch(2), of, x);
    const input gradient = h.out();
    static_cast<void>(std::move(h).backward(gradient));
  };
  if (recomputed)
    both(again);
  else
    both(layer);
  static_cast<void>(std::move(step).commit());
}

}  // namespace

TEST_CASE("a layer that touches memory in a rehearsal is named, with its call, and the process ends as it would have") {
  using fault = careless::fault;
  const ended forward = in_child([] { rehearse(fault::in_forward); });
  CHECK(forward.by_segv());
  CHECK(forward.says("belay: a rehearsal touched memory"));
  CHECK(forward.says(
      "Byte 12 of the activations was touched in the forward of layer 7 'careless' (micro-batch 2) opened at "));
  CHECK(forward.says("rehearsal_watch.cpp:"));
  CHECK(forward.says(", in the step begun at "));
  CHECK(forward.says("Compute by frame.each, frame.teams and frame.product"));
  const ended backward = in_child([] { rehearse(fault::in_backward); });
  CHECK(backward.by_segv());
  CHECK(backward.says("Byte 0 of the activations was touched in the backward of layer 7 'careless'"));
  const ended recompute = in_child([] { rehearse(fault::in_recompute, true); });
  CHECK(recompute.by_segv());
  CHECK(recompute.says("in the recompute of layer 7 'careless'"));
  const ended clean = in_child([] { rehearse(fault::none); });
  CHECK(clean.status == 0);
  CHECK(clean.said.empty());
}

TEST_CASE("a touch between the calls of layers is said to be one, and other faults keep to themselves") {
  const ended between = in_child([] {
    belay::tier_meter meter;
    engine planned{meter};
    careless layer;
    belay::step step{planned};
    auto h = belay::forward(step, layer, input{nullptr, {4, 8}});
    careless::write(const_cast<float*>(h.out().data()));  // a loss that was computed in place
    std::move(h).discard("not reached");
    step.cut_off();
  });
  CHECK(between.by_segv());
  CHECK(between.says("outside of a layer's call, in the step begun at"));
  const ended null = in_child([] { rehearse(careless::fault::null); });
  CHECK(null.by_segv());
  CHECK(null.said.empty());
  const ended constant = in_child([] { rehearse(careless::fault::read_only); });
  CHECK(constant.by_segv());
  CHECK(constant.says("not of the activations"));
  CHECK(constant.says("in the forward of layer 7 'careless'"));
  const ended after = in_child([] {
    rehearse(careless::fault::none);
    careless::write(nullptr);
  });
  CHECK(after.by_segv());
  CHECK(after.said.empty());
}

TEST_CASE("what handled the signal before handles it still, and has it back after the rehearsal") {
  const auto install = [] {
    struct sigaction mine = {};
    mine.sa_flags = SA_SIGINFO;
    mine.sa_sigaction = [](int, siginfo_t*, void*) {
      constexpr char words[] = "mine";
      if (::write(STDERR_FILENO, words, sizeof words - 1) > 0) ::_exit(42);
    };
    ::sigaction(SIGSEGV, &mine, nullptr);
  };
  for (const auto fault : {careless::fault::in_forward, careless::fault::null}) {
    const ended chained = in_child([&] {
      install();
      rehearse(fault);
    });
    CHECK(WIFEXITED(chained.status));
    CHECK(WEXITSTATUS(chained.status) == 42);
    CHECK(chained.says("mine"));
    CHECK(chained.says("careless") == (fault == careless::fault::in_forward));
  }
  const ended sent = in_child([&] {  // by a process, which is no fault of a layer
    belay::tier_meter meter;
    engine planned{meter};
    belay::step step{planned};
    ::raise(SIGSEGV);
    step.cut_off();
  });
  CHECK(sent.by_segv());
  CHECK(sent.said.empty());
  const ended restored = in_child([] {
    rehearse(careless::fault::none);
    if (!segv_is_default()) ::_exit(3);
    belay::tier_meter meter;
    engine one{meter}, two{meter};
    {
      belay::step outer{one};
      belay::step inner{two};
      if (segv_is_default()) ::_exit(4);
      inner.cut_off();
      outer.cut_off();
    }
    if (!segv_is_default()) ::_exit(5);
    // A handler that the program has installed on top stays.
    {
      belay::step step{one};
      struct sigaction ignored = {};
      ignored.sa_handler = [](int) {};
      ::sigaction(SIGSEGV, &ignored, nullptr);
      step.cut_off();
    }
    if (segv_is_default()) ::_exit(6);
  });
  CHECK(restored.status == 0);
}

TEST_CASE("two threads rehearse at once: the end of one leaves the other's layers named") {
  const ended threads = in_child([] {
    std::atomic<int> open{0};
    std::atomic<bool> over{false};
    std::thread other([&] {
      belay::tier_meter meter;
      engine planned{meter};
      belay::step step{planned};
      ++open;
      over.wait(false);
      step.cut_off();
    });
    while (open.load() == 0) std::this_thread::yield();
    std::thread faulty([&] {
      belay::tier_meter meter;
      engine planned{meter};
      belay::step step{planned};
      over = true;
      over.notify_all();
      other.join();
      careless layer{careless::fault::in_forward};
      static_cast<void>(belay::observe(step, layer, input{nullptr, {1, 8}}));
      step.cut_off();
    });
    faulty.join();
  });
  CHECK(threads.by_segv());
  CHECK(threads.says("in the forward of layer 7 'careless'"));
}
