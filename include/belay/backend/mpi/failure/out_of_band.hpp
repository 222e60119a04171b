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
      : messages_(comm, tag), number_(number), world_(&world), answers_(static_cast<std::size_t>(ranks)) {}
  out_of_band(const out_of_band&) = delete;
  out_of_band& operator=(const out_of_band&) = delete;

  /// Sends all other ranks why the world stopped.
  void send_abort(const abort_cause& why) {
    const std::vector<std::byte> text = packed(message_type::abort, lane::caller, why, {});
    const std::lock_guard lock(mutex_);
    for (int rank = 0; rank < static_cast<int>(answers_.size()); ++rank) {
      if (rank == number_) continue;
      try {
        messages_.send(rank, text);
      } catch (const mpi_error&) {
        // It may be the one that is gone; the others are still sent to.
      }
    }
  }

  /// Asks a rank where it is.
  void ask(int rank, lane which) {
    const std::lock_guard lock(mutex_);
    answers_[static_cast<std::size_t>(rank)].clear();
    messages_.send(rank, packed(message_type::ask, which, {}, {}));
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
    messages_.poll([this](int from, std::span<const std::byte> bytes) { read(from, bytes); });
  }

  /// Whether the library is done with everything sent.
  [[nodiscard]] bool drained() {
    const std::lock_guard lock(mutex_);
    return messages_.drained();
  }

 private:
  static constexpr int tag = 2;
  enum class message_type : std::uint8_t { abort, ask, answer };

  // Followed by the culprits, the message and its site.
  struct header {
    message_type message;
    lane which;
    comm_fault fault;
    error_kind thrown;
    bool process_gone;
    bool finished;
    operation what;
    std::uint32_t group;
    std::uint64_t number, bytes;
    std::size_t culprits, message_bytes, site_bytes;
  };

  static std::vector<std::byte> packed(message_type message, lane which, const abort_cause& why,
                                       const flight_record& last) {
    header head;
    std::memset(static_cast<void*>(&head), 0, sizeof head);  // the padding is sent too
    head.message = message;
    head.which = which;
    head.fault = why.fault;
    head.thrown = why.thrown;
    head.process_gone = why.process_gone;
    head.finished = last.finished;
    head.what = last.what;
    head.group = last.group;
    head.number = last.number;
    head.bytes = last.bytes;
    head.culprits = why.culprits.size();
    head.message_bytes = why.message.size();
    head.site_bytes = why.there.size();
    std::vector<std::byte> out;
    const auto put = [&](const void* from, std::size_t size) {
      const auto* bytes = static_cast<const std::byte*>(from);
      out.insert(out.end(), bytes, bytes + size);
    };
    put(&head, sizeof head);
    put(why.culprits.data(), why.culprits.size() * sizeof(int));
    put(why.message.data(), why.message.size());
    put(why.there.data(), why.there.size());
    return out;
  }

  void read(int from, std::span<const std::byte> bytes) {
    header head;
    if (bytes.size() < sizeof head) return;
    std::memcpy(&head, bytes.data(), sizeof head);
    const std::byte* at = bytes.data() + sizeof head;
    abort_cause what;
    what.fault = head.fault;
    what.thrown = head.thrown;
    what.process_gone = head.process_gone;
    what.culprits.resize(head.culprits);
    if (head.culprits > 0) std::memcpy(what.culprits.data(), at, head.culprits * sizeof(int));
    at += head.culprits * sizeof(int);
    what.message.assign(reinterpret_cast<const char*>(at), head.message_bytes);
    what.there.assign(reinterpret_cast<const char*>(at + head.message_bytes), head.site_bytes);
    switch (head.message) {
      case message_type::abort: world_->abort(std::move(what)); break;
      case message_type::ask: {
        const bool called = head.which == lane::caller;
        const flight_record last = world_->recorder(head.which).last();
        const flight_record aside = world_->recorder(called ? lane::stream : lane::caller).last();
        const std::string text = text_of(last, aside, called ? "started" : "called");
        messages_.send(from,
                       packed(message_type::answer, head.which, {comm_fault::revoked, {}, text, last.site}, last));
        break;
      }
      case message_type::answer: {
        answers_[static_cast<std::size_t>(from)] = what.message;
        const auto size = static_cast<std::size_t>(head.bytes);
        world_->history(head.which)
            .add_report(from, {head.what, head.finished, head.group, head.number, size, 0, 0, what.there, false},
                        peer_history::reporter::running);
        break;
      }
    }
  }

  message_queue messages_;
  int number_;
  world_status* world_;
  mutable std::mutex mutex_;
  std::vector<std::string> answers_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
