// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks with a device each expect of NCCL: the same bits of a sum on all of them, windows that are loaded and
// stored, and that a rank comes back when a peer does not: of any Api and NCCL, so that the fakes and a machine with
// several GPUs are asked the same. Each trial says what is wrong; nothing where all is right. Includes no doctest, so
// that nvcc can take it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/comm.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/kernel/elementwise.hpp"

namespace nccl_trials {

/// Numbers whose sums depend on the order.
struct uneven {
  float* x;
  std::size_t rank;
  BELAY_HD void operator()(std::size_t i) const {
    x[i] = 0.1F * static_cast<float>(1 + (i * 7 + rank * 13) % 101) / static_cast<float>(1 + rank);
  }
};

/// The values of `mine`, of each rank.
template <class Rank>
std::vector<std::uint64_t> told_by_all(Rank& rank, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(rank.size()));
  rank.control().all_gather(std::span<const std::uint64_t>(&mine, 1), std::span(all));
  return all;
}

/// Sums of up to `most` elements have the same bits on all ranks, whoever adds them.
template <class World>
std::string same_bits(World&& world, std::size_t most) {
  std::atomic<std::size_t> apart{0};
  world.run([&](auto& rank) {
    const auto& all = rank.world();
    const auto memory = rank.make_memory(belay::tier::device, most * sizeof(float));
    auto kit = rank.make_kit();
    auto* const x = reinterpret_cast<float*>(memory.data());
    for (std::size_t count = 1; count <= most; count = 37 * count + 1) {
      kit.each(count, uneven{x, static_cast<std::size_t>(rank.number())});
      belay::pending sum = all.start_all_reduce(std::span(x, count), belay::sum, belay::after(kit.stream().record()));
      std::move(sum).then(kit.stream());
      kit.stream().synchronize();
      std::vector<float> got(count);
      all.fetch(got.data(), x, count * sizeof(float));
      belay::fnv1a bits;
      for (const float each : got) bits.add(std::bit_cast<std::uint32_t>(each));
      const std::vector<std::uint64_t> told = told_by_all(rank, bits.value());
      if (told.front() != bits.value()) apart = count;
    }
  });
  return apart == 0 ? "" : "ranks have other bits of a sum of " + std::to_string(apart.load()) + " elements";
}

struct stored {
  std::byte* const* windows;
  int peer;
  std::size_t offset;
  float first;
  BELAY_HD void operator()(std::size_t i) const {
    reinterpret_cast<float*>(windows[peer] + offset)[i] = first + static_cast<float>(i);
  }
};
struct compared {
  std::byte* const* windows;
  int peer;
  std::size_t offset;
  float first;
  std::uint32_t* wrong;
  BELAY_HD void operator()(std::size_t i) const {
    if (reinterpret_cast<const float*>(windows[peer] + offset)[i] != first + static_cast<float>(i)) ++wrong[i];
  }
};
inline constexpr const char* no_reach = "peers' windows are not loaded and stored here";

/// Kernels of a peer load what a rank's kernel stores into its window, and that rank what the peer has stored at home,
/// behind an operation of NCCL in the order of streams, and behind a wait of the host: with memory that is written
/// again and again.
template <class World>
std::string windows(World&& world, std::size_t n, std::size_t rounds) {
  std::atomic<std::size_t> wrong{0};
  std::atomic<bool> reached{true};
  world.run([&](auto& rank) {
    const auto& all = rank.world();
    const int ranks = rank.size(), me = rank.number(), next = (me + 1) % ranks, previous = (me + ranks - 1) % ranks;
    auto window = rank.make_window(all, 2 * n * sizeof(float) + 512);
    if (window.reach() < ranks) return static_cast<void>(reached = false);
    const std::size_t put = window.take(n * sizeof(float)), got = window.take(n * sizeof(float));
    const auto memory = rank.make_memory(belay::tier::device, n * sizeof(std::uint32_t) + sizeof(float));
    auto* const told = reinterpret_cast<std::uint32_t*>(memory.data());
    const std::span<float> one(reinterpret_cast<float*>(told + n), 1);
    auto kit = rank.make_kit();
    kit.each(n, belay::kernel::fill<std::uint32_t>{told, 0});
    kit.each(1, belay::kernel::fill<float>{one.data(), 0});
    const auto turn = [&](bool of_streams) {
      if (of_streams) {
        belay::pending done = all.start_all_reduce(one, belay::sum, belay::after(kit.stream().record()));
        return std::move(done).then(kit.stream());
      }
      kit.stream().synchronize();
      all.barrier();
    };
    const auto in_team = [&](int peer) { return window.in_team(peer, me).value_or(0); };
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto value = [&](int of) {
        return static_cast<float>(round * static_cast<std::size_t>(ranks) * n) +
               static_cast<float>(static_cast<std::size_t>(of) * n);
      };
      kit.each(n, stored{window.pointers(), in_team(next), put, value(me)});
      kit.each(n, stored{window.pointers(), in_team(me), got, value(me) + 0.5F});
      turn(round % 2 == 0);
      kit.each(n, compared{window.pointers(), in_team(me), put, value(previous), told});
      kit.each(n, compared{window.pointers(), in_team(next), got, value(next) + 0.5F, told});
      turn(round % 3 == 0);
    }
    std::vector<std::uint32_t> counts(n);
    kit.stream().synchronize();
    all.fetch(counts.data(), told, n * sizeof(std::uint32_t));
    for (const std::uint32_t each : counts) wrong += each;
  });
  if (!reached) return no_reach;
  return wrong == 0 ? "" : std::to_string(wrong.load()) + " loads have found something else than was stored";
}

/// A policy whose rank 1 leaves its body where it would make a group, once that is asked for.
template <class N>
class leaving : public N {
 public:
  struct shared {
    std::atomic<bool> now{false};
    int copies = 0;
  };
  leaving(const N& of, shared& how) : N(of), how_(&how) {}
  leaving(const leaving& other) : N(other), how_(other.how_), rank_(how_->copies++) {}  // a world has one a rank
  template <class Handle>
  [[nodiscard]] typename N::status_type split(Handle of, int colour, int key, Handle& made, belay::nccl::calls how) {
    if (rank_ == 1 && how_->now) throw belay::input_error("rank 1 leaves", belay::where::current());
    return N::split(of, colour, key, made, how);
  }

 private:
  shared* how_;
  int rank_ = -1;
};

/// Where a rank waits for a peer that has left: in a call of NCCL, for a collective, or for the launch of a graph with
/// one.
enum class waits_in { call, collective, graph };

/// The waiting rank comes back, and the world throws why the peer has left.
template <class Api, class N, class Options>
std::string comes_back(Api& api, const N& nccl, waits_in what, const belay::host::world& control,
                       const Options& options) {
  typename leaving<N>::shared how;
  belay::nccl::world world(api, leaving<N>(nccl, how), control, options);
  std::array<std::shared_ptr<void>, 2> kept;  // of a rank that has failed, peers use its memory still
  try {
    world.run([&](auto& rank) {
      const auto& all = rank.world();
      using memory_type = std::remove_cvref_t<decltype(rank.make_memory(belay::tier::device, 1))>;
      const auto memory = std::make_shared<memory_type>(rank.make_memory(belay::tier::device, 4096));
      kept[static_cast<std::size_t>(rank.number())] = memory;
      const std::span<float> x(reinterpret_cast<float*>(memory->data()), 1000);
      auto kit = rank.make_kit();
      kit.each(x.size(), belay::kernel::fill<float>{x.data(), 1});
      const auto sum = [&] {
        belay::pending done = all.start_all_reduce(x, belay::sum, belay::after(kit.stream().record()));
        std::move(done).then(kit.stream());
      };
      sum();
      if (what == waits_in::call) {
        kit.stream().synchronize();
        all.barrier();
        how.now = true;
        const int both[] = {0, 1};
        static_cast<void>(rank.group(both));
      } else if (what == waits_in::collective) {
        if (rank.number() == 1) throw belay::input_error("rank 1 leaves", belay::where::current());
        sum();
        kit.stream().synchronize();
      } else {
        auto graph = kit.stream().capture(sum);
        kit.stream().launch(graph);
        kit.stream().synchronize();
        if (rank.number() == 1) throw belay::input_error("rank 1 leaves", belay::where::current());
        kit.stream().launch(graph);
        kit.stream().synchronize();
      }
    });
  } catch (const belay::error& told) {
    return std::string(told.what()).find("rank 1 leaves") != std::string::npos ? "" : told.what();
  }
  return "a rank does not wait for a peer that has left";
}

}  // namespace nccl_trials
