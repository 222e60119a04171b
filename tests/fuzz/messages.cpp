// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any packets on the socket between ranks and the process that holds their memory: a message, whole and within its
// limits, or a word on what is wrong, never more than was sent.
//
// The input is packets: twelve bits give a packet's length; of the four left, one fills it up to the size of a frame,
// one puts our mark and version at its beginning.
#include "belay/backend/host/bootstrap/messages.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz/support/target.hpp"

namespace host = belay::host;
using frame = host::connection::frame;

namespace {

constexpr std::uint64_t longest = 8192;

// What one packet holds; takes its bytes off the front.
std::vector<std::byte> next_packet(std::string_view& input) {
  const auto low = static_cast<unsigned char>(input[0]);
  const auto high = static_cast<unsigned char>(input[1]);
  input.remove_prefix(2);
  const std::size_t length = low + std::size_t{256} * (high & 0xfU);
  const std::string_view bytes = input.substr(0, std::min(length, input.size()));
  input.remove_prefix(bytes.size());
  std::vector<std::byte> packet(bytes.size());
  if (!bytes.empty()) std::memcpy(packet.data(), bytes.data(), bytes.size());
  if ((high & 0x10U) != 0) packet.resize(sizeof(frame));  // of the right size, zeros behind
  if ((high & 0x20U) != 0 && packet.size() >= 6) {
    std::memcpy(packet.data(), &host::connection::magic, 4);
    std::memcpy(packet.data() + 4, &host::connection::version, 2);
  }
  return packet;
}

void look_at(const host::received& got, std::size_t sent) {
  fuzz::expect(got.said.body.size() <= std::min<std::uint64_t>(longest, sent), "no body is longer than what was sent");
  const auto kind = static_cast<std::uint16_t>(got.said.kind);
  fuzz::expect(kind >= 1 && kind <= host::last_message_kind, "a message is of a known kind");
  fuzz::expect(!got.file, "no descriptor was sent");
  auto ends = host::connected_pair();
  fuzz::expect(ends.has_value(), "socketpair");
  const host::time_point now = std::chrono::steady_clock::now();
  fuzz::expect(ends->first.send(got.said, now), "a message that came can be sent");
  const host::received again = ends->second.receive(now);
  fuzz::expect(again.what == host::receipt::whole && again.said.body == got.said.body &&
                   again.said.kind == got.said.kind && again.said.rank == got.said.rank &&
                   again.said.ticket == got.said.ticket && again.said.numbers == got.said.numbers &&
                   host::same(again.said.secret, got.said.secret),
               "a message arrives as it was sent");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input = fuzz::text_of(data, size);
  auto ends = host::connected_pair();
  fuzz::expect(ends.has_value(), "socketpair");
  auto& [sender, receiver] = *ends;
  receiver.limit_body(longest);
  std::size_t sent = 0;
  while (input.size() >= 2) {
    const std::vector<std::byte> packet = next_packet(input);
    const ssize_t put = ::send(sender.fd(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    fuzz::expect(put == static_cast<ssize_t>(packet.size()), "the socket takes a packet");
    sent += packet.size();
    const host::received got = receiver.receive({});  // takes what is there
    if (got.what == host::receipt::whole) look_at(got, sent);
    if (got.what == host::receipt::garbled) fuzz::expect(got.why != nullptr, "garbled has a reason");
    if (got.what == host::receipt::garbled || got.what == host::receipt::closed) break;  // of no more use
  }
  return 0;
}
