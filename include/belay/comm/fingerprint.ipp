// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The texts of fingerprints.
#pragma once

#include "belay/comm/fingerprint.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string fingerprint::text() const {
  return call_text() + (shape == 0 ? std::string() : " with counts #" + std::to_string(shape % 1000000));
}

BELAY_DECL std::string fingerprint::text_with(std::span<const std::size_t> counts) const {
  if (shape == 0) return text();
  constexpr std::size_t most = 8;
  std::string out = call_text() + " with counts";
  for (std::size_t i = 0; i < counts.size() && i < most; ++i) out += (i == 0 ? " " : ", ") + std::to_string(counts[i]);
  return out + (counts.size() > most ? ", ..." : "");
}

BELAY_DECL std::string fingerprint::call_text() const {
  std::string out = first_start() ? std::string("a started ") + belay::name(what) : belay::name(what);
  if (type.bytes > 0) out += " of " + std::to_string(count) + " x " + type.text();
  if (how != reduction::none) out += std::string(" (") + belay::name(how) + ")";
  if (root >= 0) out += " with root " + std::to_string(root);
  return out;
}

}  // namespace belay::inline BELAY_ABI
