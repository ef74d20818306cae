// Makes the transport of a service.
#pragma once

#include <functional>
#include <memory>

#include "transport/qp_host.h"
#include "transport/qp_transport.h"

namespace verbena::softnic {

// nullptr: no such service.
using TransportFactory = std::function<std::unique_ptr<transport::QpTransport>(
    const transport::QpConfig&, transport::QpHost*)>;

std::unique_ptr<transport::QpTransport> MakeTransport(const transport::QpConfig& config,
                                                      transport::QpHost* host);

}  // namespace verbena::softnic
