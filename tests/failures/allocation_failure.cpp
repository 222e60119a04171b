// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that runs out: at the k-th allocation of a rank, from the making of its mesh to the end of its first step.
// That rank ends with what it was told, the others with an error that names it, and all that there was is given back.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/phase_switch.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/network.hpp"
#include "test_length.hpp"

namespace {

std::atomic<std::int64_t> live_allocations{0};
// Of this thread: how many allocations there are until one fails; 0: none does.
thread_local std::uint64_t until_failure = 0;

// ThreadSanitizer has operators of its own, which a program cannot replace.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BELAY_TEST_KEEPS_OPERATORS 1
#endif
#endif
#ifdef BELAY_TEST_KEEPS_OPERATORS
constexpr bool replaces_operators = false;
}  // namespace
#else
constexpr bool replaces_operators = true;
void* allocate(std::size_t bytes, std::size_t alignment) {
  if (until_failure > 0 && --until_failure == 0) throw std::bad_alloc();
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes == 0 ? 1 : bytes)
                           : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  live_allocations.fetch_add(1, std::memory_order_relaxed);
  return memory;
}
void* allocate_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  try {
    return allocate(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void release(void* memory) noexcept {
  if (memory == nullptr) return;
  live_allocations.fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t to) { return allocate(bytes, static_cast<std::size_t>(to)); }
void* operator new[](std::size_t bytes, std::align_val_t to) { return allocate(bytes, static_cast<std::size_t>(to)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate_or_null(bytes, 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate_or_null(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, static_cast<std::size_t>(to));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
#endif

namespace {

using namespace network_bench;

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
struct two_layers {
  listed first{{{"first.weight", {12, 7}}}}, second{{{"second.weight", {3, 12}}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

template <int Stage>
void train_once(auto& rank, auto& run) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  two_layers net;
  belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}, belay::store_options{.bucket_bytes = 128}};
  belay::gathers first{net.first, store}, second{net.second, store};
  belay::adamw optimizer{store};
  belay::phase_switch phases{run, mesh, store};
  auto training = phases.begin();
  const data batch{1, 0};
  for (auto number : run.steps(1)) {
    static_cast<void>(number);
    belay::step step{run.engine(), store};
    auto h = belay::forward(step, first, belay::constant(batch.inputs()));
    auto y = belay::forward(step, second, h.out());
    auto [loss, grad] = belay::squared_error(step, y.out(), batch.targets());
    grad = std::move(y).backward(grad);
    std::move(h).backward(grad);
    auto outcome = std::move(step).commit(mesh, belay::samples{rows * static_cast<std::size_t>(rank.size())});
    if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
  }
  auto evaluating = phases.to_eval(std::move(training));
  static_cast<void>(store.read(net.first.weight));
  training = phases.to_train(std::move(evaluating));
}

// What a run of which the k-th allocation of the last rank fails ends with.
struct ending {
  bool failed = false;  // it had so many
  std::string culprit, survivor, launcher;
};

template <int Stage>
ending run_with_failure(int ranks, std::uint64_t k) {
  ending out;
  const auto body = [&](auto& rank, auto& run) {
    if (run.rehearsing()) return train_once<Stage>(rank, run);
    const bool is_culprit = rank.number() == ranks - 1;
    try {
      if (is_culprit) until_failure = k;
      train_once<Stage>(rank, run);
      if (is_culprit) out.failed = until_failure == 0;
      until_failure = 0;
    } catch (const std::bad_alloc& error) {
      if (is_culprit) out.failed = true;
      (is_culprit ? out.culprit : out.survivor) = "std::bad_alloc";
      throw;
    } catch (const std::exception& error) {
      if (is_culprit) out.failed = until_failure == 0;
      until_failure = 0;
      if (is_culprit || rank.number() == 0) (is_culprit ? out.culprit : out.survivor) = error.what();
      throw;
    }
  };
  try {
    belay::launch(belay::host::world{ranks}, body);
  } catch (const std::exception& error) {
    out.launcher = error.what();
  }
  return out;
}

std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// Every allocation in a soak; else every third, and with a sample every seventh.
template <int Stage>
void check_every_allocation(int ranks) {
  const std::uint64_t stride = is_soak() ? 1 : only_a_sample() ? 7 : 3;
  static_cast<void>(run_with_failure<Stage>(ranks, 1));  // what is made once in a process
  const std::int64_t live = live_allocations.load();
  const std::size_t descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
  std::uint64_t k = 1;
  for (bool failed = true; failed; k += stride) {
    std::int64_t left = 0;
    {
      const ending found = run_with_failure<Stage>(ranks, k);
      failed = found.failed;
      const bool culprit = found.culprit.empty() == !failed, launcher = found.launcher.empty() == !failed;
      const bool named =
          ranks == 1 || !failed || found.survivor.find("rank " + std::to_string(ranks - 1)) != std::string::npos;
      if (!culprit || !launcher || !named)
        FAIL_CHECK("allocation " << k << ", " << ranks << " ranks\nculprit: " << found.culprit
                                 << "\nsurvivor: " << found.survivor << "\nlauncher: " << found.launcher);
    }
    left = live_allocations.load() - live;
    if (left != 0) FAIL_CHECK("allocation " << k << ", " << ranks << " ranks: " << left << " are left");
    CHECK(entries_of("/proc/self/fd") == descriptors);
    CHECK(entries_of("/proc/self/task") == threads);
  }
  CHECK(k > 50);
}

}  // namespace

TEST_CASE("a rank whose memory runs out ends the run with its name, and nothing stays") {
  if (!replaces_operators) return;
  check_every_allocation<0>(1);
  check_every_allocation<2>(2);
  check_every_allocation<3>(3);
}
