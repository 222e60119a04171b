// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One sweep of what dead processes left.
#pragma once

#include <fcntl.h>

#include <cstring>
#include <exception>
#include <string_view>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_file.hpp"
#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/private_directory.hpp"
#include "belay/backend/host/bootstrap/stale_files.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL int remove_stale_files(const std::string& base) noexcept try {
  int removed = 0;
  const auto attempt = [&](const auto& remove) {
    try {
      removed += remove() ? 1 : 0;
    } catch (const file_error&) {  // not private, or not ours
    }
  };
  const unique_fd folder(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string sockets = user_prefix() + "-";
  for (const std::string& name : folder ? names_in(folder.get(), sockets) : std::vector<std::string>{}) {
    std::string_view rest = std::string_view(name).substr(sockets.size());
    const auto owner = file_owner::read(rest);
    if (!owner || rest.size() != 17 || rest.front() != '-' || !owner->gone()) continue;
    attempt([&] {
      const auto found = private_directory::find(base + "/" + name, {});
      if (!found) return false;
      found->remove(bootstrap_socket::file_name);
      return found->remove_if_empty();  // one that holds anything else stays
    });
  }
  attempt([&] {
    const auto files = private_directory::find(base + "/" + user_prefix(), {});
    if (!files) return false;
    for (const std::string& name : files->names(bootstrap_file::prefix)) {
      attempt([&] {
        const auto found = bootstrap_file::read(*files, name, {});
        if (!found || !found->owner.gone()) return false;
        files->remove(name);
        return true;
      });
    }
    for (const std::string& name : files->names(bootstrap_file::unfinished)) {
      std::string_view rest = std::string_view(name).substr(std::strlen(bootstrap_file::unfinished));
      const auto owner = file_owner::read(rest);
      if (!owner || !rest.empty() || !owner->gone()) continue;
      files->remove(name);
      ++removed;
    }
    return false;
  });
  return removed;
} catch (const std::exception&) {  // no memory: the next start tries again
  return 0;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
