// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks tell each other beside their operations: that the world has stopped and why, and, asked by who is
// about to give up on them, where they are. Whoever waits in any lane looks here.
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

  /// Tells all other ranks why the world stopped.
  void tell(const abort_cause& why) {
    std::vector<std::byte> text = packed(out_of_band_message::stop, lane::caller, why, {});
    const std::lock_guard lock(mutex_);
    for (int rank = 0; rank < static_cast<int>(answers_.size()); ++rank) {
      if (rank == number_) continue;
      try {
        out_.send(comm_, rank, tag, text);
      } catch (const mpi_error&) {
        // It may be the one that is gone; the others are told.
      }
    }
  }

  /// Asks a rank where it is.
  void ask(int rank, lane which) {
    const std::lock_guard lock(mutex_);
    answers_[static_cast<std::size_t>(rank)].clear();
    out_.send(comm_, rank, tag, packed(out_of_band_message::ask, which, {}, {}));
  }
  /// What it answered; empty where it has not.
  [[nodiscard]] std::string answer(int rank) const {
    const std::lock_guard lock(mutex_);
    return answers_[static_cast<std::size_t>(rank)];
  }

  /// Looks for notices, unless another thread of this rank is looking.
  void poll() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    if (!out_.empty()) out_.reap();
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

  /// Whether everything sent has gone.
  [[nodiscard]] bool drained() {
    const std::lock_guard lock(mutex_);
    if (!out_.empty()) out_.reap();
    return out_.empty();
  }

 private:
  static constexpr int tag = 2;
  static constexpr std::size_t word_count = 12;
  enum class out_of_band_message : std::uint8_t { stop, ask, answer };

  static std::vector<std::byte> packed(out_of_band_message kind, lane which, const abort_cause& what,
                                       const flight_record& last) {
    std::vector<std::byte> out;
    const auto put = [&](const void* from, std::size_t size) {
      const auto* bytes = static_cast<const std::byte*>(from);
      out.insert(out.end(), bytes, bytes + size);
    };
    const std::uint64_t words[word_count] = {static_cast<std::uint64_t>(kind),
                                             static_cast<std::uint64_t>(which),
                                             static_cast<std::uint64_t>(what.fault),
                                             what.culprits.size(),
                                             what.message.size(),
                                             what.there.size(),
                                             what.somebody_died ? 1U : 0U,
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
    what.somebody_died = words[6] != 0;
    what.culprits.resize(words[3]);
    if (words[3] > 0) std::memcpy(what.culprits.data(), at, words[3] * sizeof(int));
    at += words[3] * sizeof(int);
    what.message.assign(reinterpret_cast<const char*>(at), words[4]);
    what.there.assign(reinterpret_cast<const char*>(at + words[4]), words[5]);
    switch (static_cast<out_of_band_message>(words[0])) {
      case out_of_band_message::stop: world_->keep(std::move(what)); break;
      case out_of_band_message::ask: {
        const lane which = static_cast<lane>(words[1]);
        const flight_record last = world_->recorder(which).last();
        const bool called = which == lane::caller;
        const flight_record aside = world_->recorder(called ? lane::stream : lane::caller).last();
        const std::string does = text_of(last, aside, called ? "started" : "called");
        const abort_cause words_of_it{comm_fault::revoked, {}, does, last.site};
        out_.send(comm_, from, tag, packed(out_of_band_message::answer, which, words_of_it, last));
        break;
      }
      case out_of_band_message::answer: {
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
        world_->history(static_cast<lane>(words[1])).told(from, std::move(last), peer_history::telling::stays);
        break;
      }
    }
  }

  MPI_Comm comm_;
  int number_;
  world_status* world_;
  mutable std::mutex mutex_;
  outbox out_;
  std::vector<std::string> answers_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
