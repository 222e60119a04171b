// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Large collectives of ranks that share a device, which read peers' buffers where they are: they have the bits of the
// host's, and a rank's buffers are free after them in every order of the device's streams, for every wait is there.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "belay/kernel/elementwise.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/cuda/forgetful_api.hpp"

using fakes::forgetful_api, fakes::forgets, fakes::work_order;

namespace {

constexpr std::size_t slot_bytes = 256;  // of which a collective of 700 numbers takes many
constexpr belay::cuda::communication_memory little{.slot_bytes = slot_bytes, .groups = 2};

// One collective over numbers of T: what a rank has before it, and where the result is in `all`.
enum class asked { all_reduce, all_reduce_beside, reduce_scatter, reduce_scatter_in_place, reduce_scatter_v };
enum class moved { all_gather, all_gather_in_place, all_gather_v };

template <class T>
struct buffers {
  static constexpr std::size_t count = 702;  // even parts of 2 and 3 ranks, and no whole packs
  std::span<T> in, out;

  explicit buffers(void* memory) : in(static_cast<T*>(memory), count), out(in.data() + count, 3 * count) {}
  static constexpr std::size_t bytes = 4 * count * sizeof(T);
};

std::vector<std::size_t> uneven(std::size_t count, std::size_t ranks) {
  std::vector<std::size_t> out(ranks, 0);  // nothing of the first
  out[1] = ranks == 2 ? count : 5;
  if (ranks > 2) out[2] = count - 5;
  return out;
}

// Starts what is asked for; everything of a rank is in `of`.
template <class T, class Op>
belay::pending start(const belay::group& on, asked what, const buffers<T>& of, Op op, const belay::start_order& how,
                     const std::vector<std::size_t>& parts) {
  const auto ranks = static_cast<std::size_t>(on.size()), rank = static_cast<std::size_t>(on.rank());
  const std::size_t each = of.in.size() / ranks;
  const std::span<const T> in = of.in;
  switch (what) {
    case asked::all_reduce: return on.start_all_reduce(of.in, op, how);
    case asked::all_reduce_beside: {
      const auto work = [in, out = of.out.first(in.size()), op](const belay::group_calls& calls) {
        calls.all_reduce(in, out, op);
      };
      return on.start_composite(belay::operation::all_reduce, work, how);
    }
    case asked::reduce_scatter: return on.start_reduce_scatter(in, of.out.first(each), op, how);
    case asked::reduce_scatter_in_place: return on.start_reduce_scatter(in, of.in.subspan(rank * each, each), op, how);
    case asked::reduce_scatter_v: break;
  }
  return on.start_reduce_scatter_v(of.in, parts, op, how);
}
template <class T>
belay::pending start(const belay::group& on, moved what, const buffers<T>& of, belay::sum_t,
                     const belay::start_order& how, const std::vector<std::size_t>& parts) {
  const auto ranks = static_cast<std::size_t>(on.size()), rank = static_cast<std::size_t>(on.rank());
  const std::size_t count = of.in.size();
  const std::span<const T> in = of.in;
  if (what == moved::all_gather) return on.start_all_gather(in, of.out.first(ranks * count), how);
  if (what == moved::all_gather_in_place)
    return on.start_all_gather(std::span<const T>(of.out.subspan(rank * count, count)), of.out.first(ranks * count),
                               how);
  return on.start_all_gather_v(of.in, parts, how);
}

// Numbers of which no two ranks have the same, and whose sum depends on the order.
template <class T>
std::vector<T> numbers(int rank) {
  std::vector<T> out(4 * buffers<T>::count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto n = static_cast<int>((i * 37 + static_cast<std::size_t>(rank) * 101) % 251) - 120;
    out[i] = static_cast<T>(static_cast<float>(n) * (rank == 1 ? 1.0e6F : 1.37F));
  }
  return out;
}
template <class T>
std::string bits_of(const std::vector<T>& of) {
  return {reinterpret_cast<const char*>(of.data()), of.size() * sizeof(T)};
}

template <class T, class What, class Op>
std::vector<std::string> on_host(int ranks, What what, Op op) {
  const std::vector<std::size_t> parts = uneven(buffers<T>::count, static_cast<std::size_t>(ranks));
  return belay::host::world(ranks).run([&](auto& own) {
    belay::rank rank(own);
    std::vector<T> all = numbers<T>(own.number());
    start(rank.world(), what, buffers<T>(all.data()), op, belay::where::current(), parts).wait();
    return bits_of(all);
  });
}

// After the collective, and in the order of streams, a rank overwrites what its peers have read, once the result is
// copied away. Rank `first` waits for its device before any other rank does.
template <class T, class Api, class What, class Op>
std::vector<std::string> on_device(Api& api, int ranks, What what, Op op, int first = 0) {
  const belay::cuda::world world(api, belay::host::world(ranks), little);
  const std::vector<std::size_t> parts = uneven(buffers<T>::count, static_cast<std::size_t>(ranks));
  constexpr std::size_t bytes = buffers<T>::bytes;
  std::vector<belay::cuda::device_memory<Api>> memory;
  for (int q = 0; q < ranks; ++q) memory.emplace_back(world.gpu(q), bytes);
  return world.run([&](auto& own) {
    belay::rank rank(own);
    belay::cuda::kit kit(own.gpu(), own.watch());
    const belay::cuda::pinned_memory before(own.gpu(), bytes), after(own.gpu(), bytes);
    std::byte* const here = memory[static_cast<std::size_t>(own.number())].data();
    const std::vector<T> mine = numbers<T>(own.number());
    std::memcpy(before.data(), mine.data(), bytes);
    kit.stream().copy(here, before.data(), bytes);
    start(rank.world(), what, buffers<T>(here), op, belay::start_order(belay::after(kit.stream().record())), parts)
        .then(kit.stream());
    kit.stream().copy(after.data(), here, bytes);
    kit.each(bytes / 4, belay::kernel::fill<std::uint32_t>{reinterpret_cast<std::uint32_t*>(here), 0x41424344});
    if (own.number() == first) kit.stream().synchronize();
    own.control().barrier();
    kit.stream().synchronize();
    own.control().barrier();
    return std::string(reinterpret_cast<const char*>(after.data()), bytes);
  });
}

template <class T, class What, class Op>
void check(What what, Op op) {
  CAPTURE(static_cast<int>(what));
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto expected = on_host<T>(ranks, what, op);
    for (const fakes::device_options& how : {fakes::device_options{work_order::eager},
                                             {work_order::late},
                                             {work_order::random, 1},
                                             {work_order::random, 2}}) {
      fakes::device_api api(how);
      CHECK(on_device<T>(api, ranks, what, op) == expected);
      CHECK(api.empty());
    }
  }
}
constexpr std::array all_asked{asked::all_reduce, asked::all_reduce_beside, asked::reduce_scatter,
                               asked::reduce_scatter_in_place, asked::reduce_scatter_v};
constexpr std::array all_moved{moved::all_gather, moved::all_gather_in_place, moved::all_gather_v};

// How many waits for peers each rank has, every one of which is missed by a result.
template <class What>
std::size_t waits_that_are_needed(What what) {
  const auto expected = on_host<float>(2, what, belay::sum);
  for (std::size_t k = 1;; ++k) {
    bool differs = false;
    for (const int first : {0, 1}) {
      forgetful_api api({work_order::late}, forgets::each_for_peers, k);
      differs = on_device<float>(api, 2, what, belay::sum, first) != expected || differs;
      if (api.left_out() == 0) return k - 1;
    }
    CAPTURE(k);
    CHECK(differs);
  }
}

}  // namespace

TEST_CASE("large reductions of ranks that share a device have the bits of the host's") {
  for (const asked what : all_asked) {
    check<float>(what, belay::sum);
    check<belay::bf16>(what, belay::average);
    check<std::int32_t>(what, belay::maximum);
  }
}
TEST_CASE("large gathers of ranks that share a device are those of the host") {
  for (const moved what : all_moved) check<float>(what, belay::sum);
}
TEST_CASE("a rank waits until peers' buffers are ready and its own have been read, and each of these waits is needed") {
  for (const asked what : {asked::all_reduce, asked::all_reduce_beside}) CHECK(waits_that_are_needed(what) == 3);
  for (const asked what : {asked::reduce_scatter, asked::reduce_scatter_in_place})
    CHECK(waits_that_are_needed(what) == 2);
  for (const moved what : {moved::all_gather, moved::all_gather_in_place}) CHECK(waits_that_are_needed(what) == 2);
}
