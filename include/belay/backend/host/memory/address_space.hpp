// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Threads share an address space, processes do not: every protocol of this backend asks before it uses an address of a
// peer, or waits for a peer that may have died.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Whether the ranks of a world see each other's memory as their own.
enum class address_space : std::uint32_t { one, several };

}  // namespace host
}  // namespace belay::inline BELAY_ABI
