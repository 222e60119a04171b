// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Messages beside the operations, over a communicator of their own: that the world has stopped and why, and, shortly
// before a timeout, a question to the awaited ranks where they are. Waits of both lanes poll them.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/failure/world_status.hpp"
#include "belay/backend/mpi/progress/control_channel.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

class out_of_band {
 public:
  out_of_band(MPI_Comm comm, int ranks, int number, world_status& world)
      : comm_(comm), number_(number), world_(&world), answers_(static_cast<std::size_t>(ranks)) {}
  out_of_band(const out_of_band&) = delete;
  out_of_band& operator=(const out_of_band&) = delete;

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  /// Sends all other ranks why the world stopped.
  void send_abort(const abort_cause& why) {
    const std::vector<std::byte> text = packed(kind::abort, lane::caller, why, {});
    const std::lock_guard lock(mutex_);
    for (int rank = 0; rank < static_cast<int>(answers_.size()); ++rank) {
      if (rank == number_) continue;
      try {
        sends_.send(comm_, rank, tag, text);
      } catch (const mpi_error&) {
        // It may be the one that is gone; the others are still sent to.
      }
    }
  }

  /// Asks a rank where it is.
  void ask(int rank, lane which) {
    const std::lock_guard lock(mutex_);
    answers_[static_cast<std::size_t>(rank)].clear();
    sends_.send(comm_, rank, tag, packed(kind::ask, which, {}, {}));
  }
  /// Its answer; empty where it has not come.
  [[nodiscard]] std::string answer(int rank) const {
    const std::lock_guard lock(mutex_);
    return answers_[static_cast<std::size_t>(rank)];
  }

  /// Takes what has arrived, unless another thread of this rank does.
  void poll() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    if (!sends_.empty()) sends_.release_completed();
    while (true) {
      int there = 0;
      MPI_Message message;
      MPI_Status status;
      expect(MPI_Improbe(MPI_ANY_SOURCE, tag, comm_, &there, &message, &status), "MPI_Improbe");
      if (there == 0) return;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      std::vector<std::byte> bytes(static_cast<std::size_t>(size));
      expect(MPI_Mrecv(bytes.data(), size, MPI_BYTE, &message, &status), "MPI_Mrecv", status.MPI_SOURCE);
      read(status.MPI_SOURCE, bytes);
    }
  }

  /// Whether the library is done with everything sent.
  [[nodiscard]] bool drained() {
    const std::lock_guard lock(mutex_);
    if (!sends_.empty()) sends_.release_completed();
    return sends_.empty();
  }

 private:
  static constexpr int tag = 2;
  static constexpr std::size_t word_count = 12;
  enum class kind : std::uint8_t { abort, ask, answer };

  static std::vector<std::byte> packed(kind message, lane which, const abort_cause& what,
                                       const flight_record& last) {
    std::vector<std::byte> out;
    const auto put = [&](const void* from, std::size_t size) {
      const auto* bytes = static_cast<const std::byte*>(from);
      out.insert(out.end(), bytes, bytes + size);
    };
    const std::uint64_t words[word_count] = {static_cast<std::uint64_t>(message),
                                             static_cast<std::uint64_t>(which),
                                             static_cast<std::uint64_t>(what.fault),
                                             what.culprits.size(),
                                             what.message.size(),
                                             what.there.size(),
                                             what.process_gone ? 1U : 0U,
                                             static_cast<std::uint64_t>(last.what),
                                             last.finished ? 1U : 0U,
                                             last.group,
                                             last.number,
                                             last.bytes};
    put(words, sizeof words);
    put(what.culprits.data(), what.culprits.size() * sizeof(int));
    put(what.message.data(), what.message.size());
    put(what.there.data(), what.there.size());
    return out;
  }

  void read(int from, std::span<const std::byte> bytes) {
    std::uint64_t words[word_count];
    if (bytes.size() < sizeof words) return;
    std::memcpy(words, bytes.data(), sizeof words);
    const std::byte* at = bytes.data() + sizeof words;
    abort_cause what;
    what.fault = static_cast<comm_fault>(words[2]);
    what.process_gone = words[6] != 0;
    what.culprits.resize(words[3]);
    if (words[3] > 0) std::memcpy(what.culprits.data(), at, words[3] * sizeof(int));
    at += words[3] * sizeof(int);
    what.message.assign(reinterpret_cast<const char*>(at), words[4]);
    what.there.assign(reinterpret_cast<const char*>(at + words[4]), words[5]);
    switch (static_cast<kind>(words[0])) {
      case kind::abort: world_->abort(std::move(what)); break;
      case kind::ask: {
        const lane which = static_cast<lane>(words[1]);
        const flight_record last = world_->recorder(which).last();
        const bool called = which == lane::caller;
        const flight_record aside = world_->recorder(called ? lane::stream : lane::caller).last();
        const std::string does = text_of(last, aside, called ? "started" : "called");
        const abort_cause answer{comm_fault::revoked, {}, does, last.site};
        sends_.send(comm_, from, tag, packed(kind::answer, which, answer, last));
        break;
      }
      case kind::answer: {
        answers_[static_cast<std::size_t>(from)] = what.message;
        flight_record last{static_cast<operation>(words[7]),
                           words[8] != 0,
                           static_cast<std::uint32_t>(words[9]),
                           words[10],
                           static_cast<std::size_t>(words[11]),
                           0,
                           0,
                           what.there,
                           false};
        world_->history(static_cast<lane>(words[1])).add_report(from, std::move(last), peer_history::reporter::running);
        break;
      }
    }
  }

  MPI_Comm comm_;
  int number_;
  world_status* world_;
  mutable std::mutex mutex_;
  send_queue sends_;
  std::vector<std::string> answers_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
