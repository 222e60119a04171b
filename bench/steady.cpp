// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// steady [threads|processes] [operation] [bytes] [calls] [spin in microseconds]
//
// So many calls of one collective on two ranks with buffers of a symmetric heap, and nothing else between two marks:
// for bench/system_calls.py, which counts the system calls between them. Heap allocations are counted here;
// one is too many.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <span>
#include <string>

#include "belay/backend/host/processes.hpp"
#include "belay/backend/host/world.hpp"
#include "belay/comm/collective.hpp"
#include "belay/comm/symmetric.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"

namespace {

struct order {
  std::string as = "threads", what = "all_reduce";
  std::size_t bytes = 8;
  int calls = 10000;
  // On a machine that does other things too, no wait shall outlast its spin: sleeping is a system call.
  std::chrono::microseconds spin{2'000'000};
};

/// A system call that does nothing, with a name of its own in a trace.
void mark(const char* name) { static_cast<void>(::access(name, F_OK)); }

/// Heap allocations of the calls, in this rank's process.
template <class Group>
std::uint64_t run_calls(const Group& group, const order& orders) {
  belay::symmetric_heap heap(group, {.bytes = 2 * orders.bytes + 8192});
  const auto lease = [&](const char* tag) {
    return std::span(reinterpret_cast<float*>(heap.lease(orders.bytes, tag).local()), orders.bytes / sizeof(float));
  };
  const std::span<float> in = lease("in"), out = lease("out");
  for (float& x : in) x = 1;
  for (float& x : out) x = 1;
  const auto part = in.first(in.size() / static_cast<std::size_t>(group.size()));
  const auto call = [&] {
    if (orders.what == "barrier")
      belay::barrier(group);
    else if (orders.what == "all_gather")
      belay::all_gather(group, part, out.first(part.size() * 2));
    else if (orders.what == "broadcast")
      belay::broadcast(group, out, 0);
    else
      belay::all_reduce(group, out, belay::minimum);
  };
  for (int i = 0; i < 100; ++i) call();
  belay::barrier(group);
  const std::uint64_t before = tools::heap_allocations();
  mark("belay: calls begin");
  for (int i = 0; i < orders.calls; ++i) call();
  mark("belay: calls end");
  const std::uint64_t after = tools::heap_allocations();
  belay::barrier(group);
  return after - before;
}

}  // namespace

int main(int argc, char** argv) {
  order orders;
  if (argc > 1) orders.as = argv[1];
  if (argc > 2) orders.what = argv[2];
  if (argc > 3) orders.bytes = std::strtoul(argv[3], nullptr, 10);
  if (argc > 4) orders.calls = std::atoi(argv[4]);
  if (argc > 5) orders.spin = std::chrono::microseconds(std::atoi(argv[5]));
  void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  auto& allocations = *new (memory) std::atomic<std::uint64_t>(0);  // children add theirs
  try {
    const auto body = [&](auto& self) { allocations += run_calls(self.world(), orders); };
    const belay::host::world_options how{.pin = belay::host::pinning::one_core_each, .spin = orders.spin};
    if (orders.as == "processes")
      belay::host::processes{2, how}.run(body);
    else
      belay::host::world{2, how}.run(body);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 2;
  }
  std::printf("steady: %d calls of %s, %zu bytes, 2 ranks as %s: %llu heap allocations (limit 0)%s\n", orders.calls,
              orders.what.c_str(), orders.bytes, orders.as.c_str(), static_cast<unsigned long long>(allocations.load()),
              tools::heap_is_counted() ? "" : ", which a sanitizer keeps from being counted");
  return allocations == 0 ? 0 : 1;
}
