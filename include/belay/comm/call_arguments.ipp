// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Refusals of calls that make no sense by themselves.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>

#include "belay/comm/call_arguments.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void refuse_bytes(std::size_t given, std::size_t element_bytes, const char* what, const where& at) {
  throw size_error(std::string(what) + ": a buffer of " + std::to_string(given) + " elements of " +
                       std::to_string(element_bytes) + " bytes is",
                   at);
}
BELAY_DECL void refuse_length(std::size_t given, checked_size needed, const char* what, const where& at) {
  const std::string words = std::string(what) + " holds " + std::to_string(given) + " elements; this call needs";
  if (!needed.fits()) throw size_error(words, at);
  throw usage_error(words + " " + std::to_string(needed.saturated()), at);
}
BELAY_DECL void refuse_root(int root, int ranks, const char* what, const where& at) {
  throw usage_error(
      std::string(what) + ": root " + std::to_string(root) + " is no rank of a group of " + std::to_string(ranks), at);
}
BELAY_DECL void refuse_overlap(const char* what, const where& at) {
  throw usage_error(std::string(what) + ": input and output overlap other than in place", at);
}
BELAY_DECL void refuse_parts(std::size_t given, int ranks, const where& at) {
  throw usage_error("all_to_all: " + std::to_string(given) + " elements do not divide among " + std::to_string(ranks) +
                        " ranks; use all_to_all_v",
                    at);
}
BELAY_DECL void refuse_own_part(std::size_t sent, std::size_t expected, const where& at) {
  throw usage_error("all_to_all_v: the only rank sends itself " + std::to_string(sent) + " elements and expects " +
                        std::to_string(expected),
                    at);
}
BELAY_DECL void refuse_peer(int peer, int ranks, const where& at) {
  throw usage_error("exchange: peer " + std::to_string(peer) + " is no rank of a group of " + std::to_string(ranks),
                    at);
}
BELAY_DECL void refuse_transfers(std::size_t bytes, int peer, const where& at) {
  throw size_error(
      "exchange: " + std::to_string(bytes) + " bytes with rank " + std::to_string(peer) + " are, with those before,",
      at);
}

BELAY_DECL void check_counts(std::size_t length, std::size_t element_bytes, std::span<const std::size_t> counts,
                             int ranks, const char* what, const char* whose, const where& at) {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    throw usage_error(std::string(what) + ": " + std::to_string(counts.size()) + " counts for a group of " +
                          std::to_string(ranks) + " ranks",
                      at);
  }
  checked_size total;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    total += counts[rank];
    if ((total * element_bytes).fits()) continue;
    throw size_error(std::string(what) + ": the counts up to that of rank " + std::to_string(rank) + ", which is " +
                         std::to_string(counts[rank]) + " elements of " + std::to_string(element_bytes) +
                         " bytes, are together",
                     at);
  }
  check_length(length, total, whose, at);
}

BELAY_DECL void check_members(std::span<const int> sorted, int ranks, int own, const where& at) {
  if (sorted.empty()) throw usage_error("a group needs at least one rank", at);
  if (sorted.front() < 0 || sorted.back() >= ranks) {
    throw usage_error("a group names a rank outside of the world of " + std::to_string(ranks), at);
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw usage_error("a group names a rank twice", at);
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), own)) {
    throw usage_error("rank " + std::to_string(own) + " makes a group that it is not in", at);
  }
}

BELAY_DECL double timeout_of_environment() {
  const char* text = environment_variable("BELAY_TIMEOUT");
  if (text == nullptr || *text == '\0') return 600;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !is_finite(seconds) || seconds <= 0) {
    throw input_error("BELAY_TIMEOUT=" + std::string(text) + ": expected seconds, more than 0");
  }
  return seconds;
}

}  // namespace belay::inline BELAY_ABI
