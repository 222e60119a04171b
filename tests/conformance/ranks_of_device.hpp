// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that share a device, as the conformance suites see a backend. Worlds of more than three ranks are not run.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <type_traits>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "conformance/ends.hpp"
#include "conformance/staged_group.hpp"

namespace conformance {

/// `Devices::on_each(f)` calls `f(api)` for every device that all is to be run on, `on_one(f)` for one that shows what
/// happens on the host. `Handle` is the type of groups: the backend's own, or `belay::group`.
template <class Devices, class Handle = own_group>
struct ranks_of_device {
  static constexpr int most = 3;

  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return run(ranks, std::chrono::seconds(120), body);
  }
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    std::vector<bool> out;
    if (ranks > most) return out;
    out.assign(static_cast<std::size_t>(ranks), true);
    Devices::on_each([&](auto& api) {
      const std::vector<bool> held = run_on(api, ranks, timeout, body);
      for (std::size_t q = 0; q < out.size(); ++q) out[q] = out[q] && held[q];
    });
    return out;
  }
  template <class Body>
  static ends run_failing(int ranks, Body body) {
    ends out;
    if (ranks > most) return out;
    std::vector<char> returned(static_cast<std::size_t>(ranks), 0);  // one byte a thread
    try {
      Devices::on_one([&](auto& api) {
        static_cast<void>(run_on(api, ranks, std::chrono::seconds(120), [&](auto& rank) {
          return (returned[static_cast<std::size_t>(rank.number())] = body(rank)) != 0;
        }));
      });
    } catch (const std::exception& error) {
      out.error = belay::message_of(error);
    } catch (...) {
      out.error = "no std::exception";
    }
    out.returned.assign(returned.begin(), returned.end());
    return out;
  }

 private:
  template <class Api, class Body>
  static std::vector<bool> run_on(Api& api, int ranks, std::chrono::duration<double> timeout, const Body& body) {
    const belay::cuda::world world(api, belay::host::world(ranks, {.timeout = timeout}), {.slot_bytes = 1 << 15});
    return world.run([&](auto& rank) {
      staged_rank<std::remove_reference_t<decltype(rank)>, Api, Handle> staged(rank);
      return body(staged);
    });
  }
};

// The ranks themselves, for what reads and writes memory of the device by a group's copies.
template <class Devices>
struct bare_ranks_of_device {
  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    std::vector<bool> out;
    if (ranks > ranks_of_device<Devices>::most) return out;
    Devices::on_one([&](auto& api) {
      const belay::cuda::world world(api, belay::host::world(ranks), {.slot_bytes = 1 << 10});
      out = world.run(body);
    });
    return out;
  }
};

}  // namespace conformance
