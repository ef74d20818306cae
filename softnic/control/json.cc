// Boost.JSON's implementation, in this file only: Debian's package is used header-only.
#include <boost/json/src.hpp>
